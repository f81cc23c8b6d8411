"""Where a rank runs: rank -> node -> GPU. Proven by NCCL's own lines or a table that a person gives, else taken from
the usual order of the ranks, and then said to be. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fleet.errors import InvalidInputError
from fleet.model import NAME_PATTERN, Value

MAX_LINES = 1_000_000
"""Lines of a log in which NCCL's are looked for."""

_INIT = re.compile(
    r"([A-Za-z0-9][\w.-]{0,199}):\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO .{0,200}?\brank (\d{1,9}) nranks (\d{1,9})"
    r" cudaDev (\d{1,4}) .{0,60}?\bbusId ([0-9a-fA-F]{1,10})\b"
)


class Place(Value):
    """Where one rank runs, as far as known."""

    node: str
    gpu: str | None = None
    """uuid, or the PCI address as the kernel writes it (`0000:1b:00`)."""
    local: int | None = None
    """Which of its node's ranks it is, counted from 0; usually the GPU's CUDA index, too."""
    assumed: bool = False
    """Nobody said it: it follows from the usual order of the ranks."""


def by_blocks(nodes: Sequence[str], ranks: int) -> dict[int, Place]:
    """Ranks in blocks over the nodes, as `srun` and torchrun number them by default. Empty where they do not fit."""
    if not nodes or ranks < len(nodes) or ranks % len(nodes):
        return {}
    each = ranks // len(nodes)
    return {r: Place(node=nodes[r // each], local=r % each, assumed=True) for r in range(ranks)}


def from_log(lines: Iterable[str], ranks: int) -> dict[int, Place]:
    """From the lines that NCCL writes with `NCCL_DEBUG=INFO` when the communicator of all ranks begins
    (`HOST:PID:TID [0] NCCL INFO comm ... rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 1b000 ... Init COMPLETE`). The
    newest line of a rank counts."""
    found: dict[int, Place] = {}
    for number, line in enumerate(lines):
        if number >= MAX_LINES:
            break
        if "NCCL INFO" not in line[:400] or not (match := _INIT.search(line[:1000])) or int(match[3]) != ranks:
            continue
        found[int(match[2])] = Place(node=match[1], gpu=pci(int(match[5], 16)), local=int(match[4]))
    return found


def pci(bus_id: int) -> str:
    """NCCL's number of a GPU (domain, bus, device, function in one) as the kernel writes the address."""
    return f"{bus_id >> 20 & 0xFFFF:04x}:{bus_id >> 12 & 0xFF:02x}:{bus_id >> 4 & 0xFF:02x}"


def parse_table(text: str) -> dict[int, Place]:
    """Lines `RANK NODE [GPU]`, blank ones and `#` comments aside. Raises InvalidInputError that names the line."""
    found: dict[int, Place] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        legal = len(words) in (2, 3) and re.fullmatch(r"[0-9]{1,9}", words[0]) and re.match(NAME_PATTERN, words[1])
        if not legal:
            raise InvalidInputError(f"line {number} is not RANK NODE [GPU]: {line.strip()[:80]!r}")
        if int(words[0]) in found:
            raise InvalidInputError(f"line {number} names rank {int(words[0])} a second time")
        found[int(words[0])] = Place(node=words[1], gpu=words[2] if len(words) == 3 else None)
    if not found:
        raise InvalidInputError("no line RANK NODE [GPU] in it")
    return found


def one_node(places: Mapping[int, Place], ranks: Iterable[int]) -> str | None:
    """The node that all these ranks are on; None where they are on several, or one's is not known."""
    nodes = {places[r].node if r in places else None for r in ranks}
    return nodes.pop() if len(nodes) == 1 else None

"""Small checkpoints, orders and steps for the tests of copies, with the real rclone."""

import os
from collections.abc import Mapping
from pathlib import Path

from activities.copy_api import Copied, CopyOrder, CopyProgress, Proof, Published, Survey
from activities.copying.finish import Finishing
from activities.copying.rclone import Rclone
from activities.copying.state import Ground, Rules
from activities.copying.work import Copying, Meters
from fleet.checkpoints.model import Format, Small
from fleet.copying.manifest import Parts
from fleet.copying.places import copy_op

ENTRY = "iter_0000100"
TRACKER = "latest_checkpointed_iteration.txt"
MARKERS = (f"{ENTRY}/.metadata", f"{ENTRY}/metadata.json")


def write(root: Path, files: Mapping[str, bytes]) -> None:
    """These files below `root`."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def checkpoint(root: Path, shards: int = 6, size: int = 20_000, entry: str = ENTRY) -> dict[str, bytes]:
    """A checkpoint as Megatron-Core lays it out, with random bytes; gives its files."""
    files = {f"{entry}/__{n}_0.distcp": os.urandom(size) for n in range(shards)}
    files |= {f"{entry}/common.pt": os.urandom(300), f"{entry}/.metadata": b"meta", f"{entry}/metadata.json": b"{}"}
    write(root, files)
    write(root, {TRACKER: b"100"})
    return files


def tree(root: Path) -> dict[str, bytes]:
    """Every file below `root` except ours."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".gpu-runbooks" not in path.parts
    }


PARTS = Parts(
    name=ENTRY,
    format=Format.TORCH_DIST,
    step=100,
    markers=MARKERS,
    trackers=(Small(path=TRACKER, text="100\n"),),
)


def order_of(source: object, target: object, parts: Parts = PARTS, owner: str = "") -> CopyOrder:
    """An order for the copy of `parts`."""
    op = copy_op(str(source), parts.name, str(target))
    return CopyOrder(
        cluster="beta", op=op, source=str(source), target=str(target), parts=parts, owner=owner, origin="alpha"
    )


class Steps:
    """The steps of one order, each a new try as after a crash; keeps what was beaten."""

    def __init__(self, order: CopyOrder, rclone: Rclone | None = None, rules: Rules | None = None) -> None:
        self.order = order
        self.rclone = rclone or Rclone()
        self.rules = rules or Rules()
        self.beats: list[CopyProgress] = []

    def ground(self) -> Ground:
        """A new try's."""
        return Ground(self.order, self.rules, self.rclone)

    def _meters(self) -> Meters:
        return Meters(self.beats.append)

    async def survey(self) -> Survey:
        return await Copying(self.ground(), self._meters()).survey()

    async def copy(self) -> Copied:
        return await Copying(self.ground(), self._meters()).run()

    async def prove(self) -> Proof:
        return await Finishing(self.ground(), self._meters()).prove()

    async def publish(self) -> Published:
        return await Finishing(self.ground(), self._meters()).publish()

    async def drop(self) -> None:
        await Finishing(self.ground(), self._meters()).drop()

    async def all(self) -> Copied:
        """Copy, proof, publication."""
        copied = await self.copy()
        proof = await self.prove()
        assert proof.ok, proof.text
        await self.publish()
        return copied

    def staged(self, path: str) -> Path:
        """A staged file of a target on this machine."""
        return Path(self.order.target) / self.ground().staged / path


def flip(path: Path, at: int = 1000) -> None:
    """Another byte there, the size and the time unchanged: what a bad disk or memory does."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x20]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def inodes(root: Path) -> dict[Path, int]:
    """The shards below a folder. One that is written again has another number."""
    return {path: path.stat().st_ino for path in root.rglob("*.distcp")}


def is_there(path: Path | str) -> bool:
    """Whether a file, folder or process (`/proc/PID`) is there."""
    return Path(path).exists()

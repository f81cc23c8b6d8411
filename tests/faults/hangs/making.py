"""Dumps of a whole job, in the shape that PyTorch writes, short enough to read in a test."""

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.faults.sources.flight_recorder import Dump, read_dump
from tests.faults.sources.dumps import record, torch_pickle

Entry = dict[str, Any]


def call(group: str, seq: int, state: str = "completed", op: str = "all_reduce", **more: Any) -> Entry:
    """One collective of a group, as one rank records it."""
    more = {"process_group": (group, f"desc_{group}"), "pg_id": _pg_id(group)} | more
    return record(seq, state, profiling_name=f"nccl:{op}", **more)


def upto(group: str, last: int, state: str = "started", op: str = "all_reduce", **more: Any) -> list[Entry]:
    """Collectives 1 to `last` of a group, the last one in `state`."""
    return [*(call(group, seq) for seq in range(1, last)), call(group, last, state, op, **more)]


def transfer(group: str, seq: int, text: str, state: str = "started", **more: Any) -> Entry:
    """A `send 0->1` or `recv 1<-0`; the ends are counted within the group."""
    return call(group, 0, state, text, p2p_seq_id=seq, is_p2p=True, **more)


def job(groups: Mapping[str, Sequence[int]], entries: Mapping[int, Sequence[Entry]]) -> dict[int, Dump]:
    """rank -> dump. `entries`: what each rank enqueued, in order."""
    return {rank: _dump(groups, rank, list(own)) for rank, own in entries.items()}


def _dump(groups: Mapping[str, Sequence[int]], rank: int, own: list[Entry]) -> Dump:
    config = {
        name: {"name": name, "desc": f"desc_{name}", "ranks": str(list(ranks))}
        for name, ranks in groups.items()
        if rank in ranks
    }
    numbered = [entry | {"record_id": number} for number, entry in enumerate(own)]
    return read_dump(torch_pickle({"version": "2.4", "pg_config": config, "entries": numbered}), rank=rank)


def _pg_id(group: str) -> int:
    return sum(group.encode())

"""Flight Recorder dumps in the bytes that PyTorch's own writer makes (torch/csrc/jit/serialization/pickler.cpp)."""

import struct
from typing import Any


def torch_pickle(value: Any) -> bytes:
    """Protocol 2, lists and dictionaries tagged with their type, texts and shared parts remembered."""
    writer = _Writer()
    writer.out += b"\x80\x02"
    writer.write(value)
    return bytes(writer.out + b".")


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self.memo: dict[Any, int] = {}
        self.count = 0

    def keep(self, key: Any) -> None:
        self.memo[key] = self.count
        self.out += b"q" + bytes([self.count]) if self.count < 256 else b"r" + struct.pack("<I", self.count)
        self.count += 1

    def recall(self, key: Any) -> bool:
        index = self.memo.get(key)
        if index is None:
            return False
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def text(self, text: str) -> None:
        if not self.recall(("text", text)):
            self.out += b"X" + struct.pack("<I", len(text.encode())) + text.encode()
            self.keep(("text", text))

    def tag(self) -> None:
        if not self.recall("tag"):
            self.out += b"ctorch.jit._pickle\nrestore_type_tag\n"
            self.keep("tag")

    def write(self, value: Any) -> None:
        if isinstance(value, list | dict):
            if not self.recall(id(value)):
                self.container(value)
                self.keep(id(value))
        elif isinstance(value, tuple):
            self.write(value[0])
            self.write(value[1])
            self.out += b"\x86"
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif value is None:
            self.out += b"N"
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)

    def container(self, value: list[Any] | dict[Any, Any]) -> None:
        self.tag()
        if isinstance(value, list):
            self.out += b"]("
            for item in value:
                self.write(item)
            self.out += b"e"
        else:
            self.out += b"}("
            for key, item in value.items():
                self.write(key)
                self.write(item)
            self.out += b"u"
        self.text("List[Any]" if isinstance(value, list) else "Dict[Any, Any]")
        self.out += b"\x86R"


FRAME = {"name": "forward", "filename": "/home/user/train.py", "line": 87}


def record(seq: int, state: str = "completed", *, record_id: int | None = None, **more: Any) -> dict[str, Any]:
    """One all-reduce of group 0 as PyTorch records it."""
    created = 1_760_000_000_000_000_000 + seq * 10**9
    return {
        "frames": [FRAME],
        "record_id": seq if record_id is None else record_id,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "duration_ms": 1.5,
        "input_sizes": [[1024, 70000]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 70000]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": created + 10**6 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + 10**7 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
    } | more


def dump(records: list[dict[str, Any]], *, ranks: int = 4, **more: Any) -> dict[str, Any]:
    """The whole of one rank's file."""
    last = max((r["collective_seq_id"] for r in records), default=-1)
    done = max((r["collective_seq_id"] for r in records if r["state"] == "completed"), default=-1)
    return {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": last,
                "last_completed_collective": done,
            }
        },
        "entries": records,
    } | more

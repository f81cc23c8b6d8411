"""Pickles that want to run something, to fill the memory or to take for ever; none of it happens."""

import io
import os
import pickle
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.checkpoints import look
from fleet.checkpoints.dcp import metadata_name
from fleet.checkpoints.pickles import Name, Pairs, PickleError, Record, read_pickle
from fleet.checkpoints.torch_files import checkpoint_name
from tests.checkpoints.conftest import Real

BOMB = 20_000_000
"""Bytes of memory that a small pickle may take at most here."""


class Runs:
    """Unpickled by Python, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def anything(_name: Name) -> bool:
    return True


def test_plain_values_come_back_as_they_were() -> None:
    value = {"a": [1, -2, 2**70, 1.5, True, None, "text", b"bytes", (), (1,), (1, 2, 3, 4)], "b": {}}

    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        read = read_pickle(pickle.dumps(value, protocol), anything)

        assert isinstance(read, Pairs)
        assert read.get("a") == value["a"]
        assert read.get("b").pairs == []
        assert read.get("c") is None


def test_an_object_is_a_record_of_what_was_said_about_it() -> None:
    read = read_pickle(pickle.dumps(OrderedDict(step=3)), anything)

    assert isinstance(read, Record)
    assert str(read.name) == "collections.OrderedDict"
    assert read.get("step") == 3


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_is_recorded_and_not_made(protocol: int, tmp_path: Path) -> None:
    place = tmp_path / "made"

    read = read_pickle(pickle.dumps(Runs(place), protocol), anything)

    assert isinstance(read, Record)
    assert read.args == (str(place),)
    assert not place.exists()


@pytest.mark.parametrize("allowed", [metadata_name, checkpoint_name])
@pytest.mark.parametrize("what", [os.system, eval, exec, __import__, pickle.loads, getattr, open])
def test_a_name_that_no_checkpoint_holds_is_refused_by_its_name(allowed: Callable[[Name], bool], what: Any) -> None:
    with pytest.raises(PickleError, match=rf"{what.__name__}, which is not on the list"):
        read_pickle(pickle.dumps(what), allowed)


@pytest.mark.parametrize("name", ["hub.os.system", "_utils.__builtins__.eval"])
def test_a_dotted_name_does_not_reach_through_an_allowed_module(name: str) -> None:
    module, short = "torch", name
    data = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(short)]) + short.encode()

    with pytest.raises(PickleError, match="not on the list"):
        read_pickle(data + b"\x93.", checkpoint_name)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "broken|no end"),
        (b"\x80\x04K\x01", "no end|broken"),
        (b"\x80\x04.", "broken"),
        (b"\x80\x04K\x01a.", "broken"),
        (b"\x80\x04u.", "no mark"),
        (b"\x80\x04(.", "a mark where a value should be"),
        (b"\x80\x04h\x05.", "broken"),
        (b"\x80\x04K\x01)R.", "a call of what is no name"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "broken"),
        (b"\x80\x02(I1\nI2\nobuiltins\nlist\n.", "the opcode|broken"),
        (b"cos\nsystem\n(S'true'\ntR.", "not on the list"),
        (b"(S'true'\nios\nsystem\n.", "the opcode"),
        (b"Pid\n.", "the opcode"),
        (b"\x82\x01.", "the opcode"),
        (b"I" + b"9" * 5000 + b"\n.", "broken"),
        (b"not a pickle at all", "broken|opcode|no end"),
    ],
)
def test_what_is_no_pickle_of_a_checkpoint_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(PickleError, match=why):
        read_pickle(data, metadata_name)


def quickly_and_small(data: bytes) -> None:
    tracemalloc.start()
    begun = time.process_time()
    try:
        read_pickle(data, anything)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < BOMB
    assert time.process_time() - begun < 10


def test_a_memo_of_four_billion_places_takes_no_memory() -> None:
    quickly_and_small(b"\x80\x04K\x01r\xff\xff\xff\xff.")


def test_a_key_whose_hash_takes_years_is_never_hashed() -> None:
    """Each tuple holds the one before it twice: 100 of them are 2^100 to a hash."""
    doubled = [b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(100)]
    nested = b"\x80\x04K\x01q\x000" + b"".join(doubled)

    quickly_and_small(nested + b"}h\x64K\x01s.")
    quickly_and_small(nested + b"\x8f(h\x64\x90.")


def test_a_list_that_holds_itself_is_read() -> None:
    quickly_and_small(b"\x80\x04]q\x00h\x00a.")


def test_deep_nesting_needs_no_stack() -> None:
    quickly_and_small(b"\x80\x04" + b"]" * 20_000 + b"a" * 19_999 + b".")


def test_python_itself_would_have_run_it_and_the_judgement_does_not(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "made"
    pickle.loads(pickle.dumps(Runs(place)))  # noqa: S301 - the proof that the pickle is a live one
    place.rmdir()
    root = real("dcp")
    (root / "step_30/.metadata").write_bytes(pickle.dumps(Runs(place)))

    found = look(root)

    assert not place.exists()
    assert "posix.mkdir, which is not on the list" in found.candidates[0].reason
    assert found.newest_complete is not None
    assert found.newest_complete.entry.step == 20


def test_a_hostile_pickle_in_a_torch_file_is_not_run(real: Real, tmp_path: Path) -> None:
    place = tmp_path / "made"
    root = real("deepspeed_zero1")
    with zipfile.ZipFile(root / "global_step30/mp_rank_00_model_states.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Runs(place)))

    found = look(root)

    assert not place.exists()
    assert "posix.mkdir, which is not on the list" in found.candidates[0].reason


def test_a_zip_bomb_is_not_unpacked(real: Real) -> None:
    root = real("deepspeed_zero1")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 200_000_000)
    (root / "global_step30/mp_rank_00_model_states.pt").write_bytes(content.getvalue())
    tracemalloc.start()

    found = look(root)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < BOMB
    assert "compressed members, which torch.save never writes" in found.candidates[0].reason


def test_a_path_in_the_metadata_that_leads_out_is_refused(real: Real) -> None:
    root = real("dcp")
    (root / "step_30/__0_0.distcp").rename(root / "outside.distcp")
    metadata = root / "step_30/.metadata"
    content = metadata.read_bytes()
    old, new = b"\x8c\x0c__0_0.distcp", b"\x8c\x11../outside.distcp"
    assert old in content
    metadata.write_bytes(content.replace(old, new))

    found = look(root)

    assert "'../outside.distcp', which lies outside of the checkpoint" in found.candidates[0].reason

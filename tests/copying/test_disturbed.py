"""Copies that are disturbed: cancelled, killed with -9 at each stage, asked for twice, damaged on the wire."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities import copies
from activities.copies import CopyActivities
from activities.copy_api import Copied, CopyOrder
from activities.copying.rclone import Rclone
from activities.copying.state import Rules
from activities.runtime import Runtime
from fleet.errors import FleetError, TemporaryError
from fleet.policy import Copies
from tests.copying.conftest import Bucket
from tests.copying.making import ENTRY, TRACKER, Steps, checkpoint, inodes, is_there, order_of, tree
from tests.copying.servers import Wire, s3_env

SLOW = 400_000.0
"""Bytes a second: the copy of `big` takes 10 s then, and is disturbed long before its end."""
SOON = 5.0
"""Seconds in which a cancel must have ended everything (DESIGN.md; the worker's throttle is its own test)."""


def big(root: Path) -> dict[str, bytes]:
    """4 MB in 40 files, eight of which are in flight."""
    return checkpoint(root, shards=40, size=100_000)


class Fleet:
    """What the activities need of a worker: a policy whose cap can be set, and no freeze."""

    def __init__(self, bandwidth: float | None) -> None:
        self.copies = Copies.model_construct(bandwidth=bandwidth, headroom=5.0, files_at_once=4)

    def policy(self) -> "Fleet":
        return self

    async def check_freeze(self, cluster: str) -> None:
        """Never frozen."""


class Try:
    """One try of `copy_files` as Temporal would run it."""

    def __init__(self, acts: CopyActivities, order: CopyOrder) -> None:
        self.beats: list[dict[str, object]] = []
        self.moving = asyncio.Event()
        self.env = ActivityEnvironment()
        self.env.on_heartbeat = self._beat
        self.task = asyncio.ensure_future(self.env.run(acts.copy, order))

    def _beat(self, *details: object) -> None:
        if details and isinstance(told := details[0], dict):
            self.beats.append(told)
            if told["step"] == "copy data" and told["done"]:
                self.moving.set()

    async def until_moving(self) -> None:
        waiting = asyncio.create_task(self.moving.wait())
        await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        waiting.cancel()
        assert self.moving.is_set(), self.beats


@pytest.fixture
def beats_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BEAT_SECONDS", 0.05)


def movers(order: CopyOrder) -> list[int]:
    """Processes of rclone that work on an order."""
    found = []
    for at in Path("/proc").iterdir():
        if at.name.isdigit():
            with contextlib.suppress(OSError):
                words = (at / "cmdline").read_bytes().split(b"\0")
                if b"copy" in words and any(order.op.encode() in word for word in words):
                    found.append(int(at.name))
    return found


async def test_a_cancel_ends_the_copy_in_seconds_and_leaves_what_can_be_resumed(
    source: Path, target: Path, beats_fast: None
) -> None:
    files = big(source)
    order = order_of(source, target)
    tried = Try(CopyActivities(cast("Runtime", Fleet(SLOW))), order)
    await tried.until_moving()
    begun = time.monotonic()
    tried.env.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tried.task
    assert time.monotonic() - begun < SOON
    assert movers(order) == []
    assert tree(target) == {}
    assert any(beat["rate"] for beat in tried.beats)
    assert {beat["total"] for beat in tried.beats if beat["step"] == "copy data"} == {
        sum(len(data) for path, data in files.items() if not path.endswith(("metadata", "metadata.json")))
    }
    await Steps(order).all()
    assert tree(target) == {**files, TRACKER: b"100\n"}


async def test_of_two_tries_at_once_the_older_one_is_ended_and_one_effect_is_left(
    source: Path, target: Path, beats_fast: None
) -> None:
    """PC-T08: the clone comes while the first one's rclone still writes."""
    files = big(source)
    order = order_of(source, target)
    fleet = Fleet(SLOW)
    acts = CopyActivities(cast("Runtime", fleet))
    first = Try(acts, order)
    await first.until_moving()
    (old,) = movers(order)
    fleet.copies = Copies()
    second = Try(acts, order)
    copied = cast("Copied", await second.task)
    with pytest.raises(Exception, match="another try of copy"):
        await first.task
    assert not is_there(f"/proc/{old}")
    assert copied.copied + copied.kept == sum(map(len, files.values()))
    await Steps(order).all()
    assert tree(target) == {**files, TRACKER: b"100\n"}


PROGRAM = """
import asyncio, sys
from activities.copy_api import CopyOrder
from activities.copying.rclone import Rclone
from activities.copying.state import Rules
from tests.copying.making import Steps
class Told(list):
    def append(self, beat):
        print(beat.step, beat.done, flush=True)
steps = Steps(CopyOrder.model_validate_json(sys.argv[1]), Rclone(), Rules(bandwidth=float(sys.argv[2])))
steps.beats = Told()
async def tell(meters):
    while True:
        await asyncio.sleep(0.02)
        meters.tell()
async def main():
    from activities.copying.work import Copying
    from activities.copying.finish import Finishing
    from activities.copying.work import Meters
    meters = Meters(steps.beats.append)
    asyncio.create_task(tell(meters))
    await Copying(steps.ground(), meters).run()
    await Finishing(steps.ground(), meters).prove()
    await Finishing(steps.ground(), meters).publish()
asyncio.run(main())
"""


def started(program: str, *words: str) -> "subprocess.Popen[str]":
    """A Python program in a process of its own, its output to be read."""
    argv = [sys.executable, "-c", program, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


@pytest.fixture
def processes() -> Iterator[list["subprocess.Popen[str]"]]:
    """Those that a test starts; none outlives it."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stage", ["read source", "copy data", "copy markers", "prove", "publish"])
async def test_killed_with_9_at_any_stage_and_resumed_nothing_whole_is_copied_again(
    source: Path, target: Path, processes: list["subprocess.Popen[str]"], stage: str
) -> None:
    files = big(source)
    order = order_of(source, target)
    rate = 1_500_000.0
    process = started(PROGRAM, order.model_dump_json(), str(rate))
    processes.append(process)
    assert process.stdout is not None
    for line in process.stdout:
        step, _, done = line.strip().rpartition(" ")
        if step == stage and (int(done) or stage != "copy data"):
            break
    children = movers(order)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    await _gone(children)
    whole = inodes(target)
    await Steps(order).all()
    assert tree(target) == {**files, TRACKER: b"100\n"}
    assert set(whole.values()) <= set(inodes(target / ENTRY).values())


async def _gone(pids: list[int]) -> None:
    """The dead worker's rclone dies with it, without anybody's help."""
    for _ in range(200):
        if not any(is_there(f"/proc/{pid}") for pid in pids):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{pids} outlived their worker")


async def test_a_byte_that_flips_on_the_wire_is_found_and_the_next_try_brings_it_right(
    source: Path, bucket: Bucket
) -> None:
    files = checkpoint(source, shards=3, size=400_000)
    wire = Wire()
    async with wire.to(bucket.env["RCLONE_CONFIG_LAB_ENDPOINT"].removeprefix("http://")):
        steps = Steps(order_of(source, bucket.root), Rclone(s3_env(wire.address)), Rules())
        with pytest.raises(FleetError) as caught:
            await steps.copy()
        assert isinstance(caught.value, TemporaryError)
        assert wire.flipped
        assert not set(tree(bucket.folder)) & {f"{ENTRY}/.metadata", f"{ENTRY}/metadata.json", TRACKER}
        wire.bad = False
        await steps.all()
    assert tree(bucket.folder) == {**files, TRACKER: b"100\n"}

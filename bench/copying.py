"""`copy`: our copy beside `rclone copy` and `rclone check` in the same run, and what 20 kills cost.

Over a folder of this machine and over S3 (`rclone serve s3` on loopback). Ours is the whole step `copy_files`:
manifest with hashes, pin, staging, every file compared by hash, markers last. Publishing and reading everything back
at the target are figures of their own; rclone has nothing like them.
"""

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from activities.copy_api import CopyOrder
from activities.copying.finish import Finishing
from activities.copying.rclone import Rclone, rclone_program
from activities.copying.state import Ground, Rules
from activities.copying.work import Copying, Meters
from bench.stand import free_port, say
from bench.table import Figure, median
from fleet.checkpoints.model import Format, Small
from fleet.copying.manifest import Parts
from fleet.copying.places import copy_op
from fleet.errors import PermanentError, TemporaryError
from fleet.model import Value

SUMMARY = "a checkpoint of 2 GiB beside raw rclone copy + check, over local disk and S3; 20 kills and resumes"
RAW = "rclone copy + rclone check"
SHARE = 0.95
"""Of the raw way's speed, at least."""
ENTRY = "iter_0001000"
MARKERS = (f"{ENTRY}/.metadata", f"{ENTRY}/metadata.json")
PARTS = Parts(
    name=ENTRY,
    format=Format.TORCH_DIST,
    step=1000,
    markers=MARKERS,
    trackers=(Small(path="latest_checkpointed_iteration.txt", text="1000"),),
)
BETWEEN = 1.0
"""Seconds of rest after the disks have caught up."""


class Pair(Value):
    """Seconds of one pair of runs."""

    raw: float
    ours: float
    publish: float
    prove: float


class Killed(Value):
    """What the kills cost."""

    kills: int
    again: int
    """Files that were whole in staging and were written a second time."""
    whole: float
    """Seconds of the copy without a kill."""
    tries: float
    """Seconds of all its tries together."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes; smaller ones are for trying it out."""
    parser.add_argument("--size", type=int, default=2048, help="MiB of the checkpoint")
    parser.add_argument("--files", type=int, default=208, help="files that they are in, markers not counted")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each way, in turn")
    parser.add_argument("--kills", type=int, default=20, help="times that the copying process is killed with -9")
    parser.add_argument("--over", choices=("local", "s3", "both"), default="both", help="which stores")


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Raises PermanentError without rclone or without room for five times the size."""
    rclone_program()
    with tempfile.TemporaryDirectory(prefix="bench-copy-") as folder:
        place = Path(folder)
        if shutil.disk_usage(place).free < 5 * options.size << 20:
            raise PermanentError(
                f"{place} has no room for five times {options.size} MiB; set TMPDIR to where there is"
            )
        say(f"writing {options.size} MiB in {options.files} files")
        make(place / "source", options.size << 20, options.files)
        found: list[Figure] = []
        for over in ("local", "s3") if options.over == "both" else (options.over,):
            under = place / over / ("bucket" if over == "s3" else "")
            with store(over, place) as (root, env):
                pairs = [asyncio.run(pair(place / "source", root, env, over, n)) for n in range(options.pairs)]
                found += figures(over, options.size << 20, pairs)
                if options.kills:
                    killed = kills(place / "source", root, under, env, options.kills)
                    found += kill_figures(over, killed)
    return tuple(found), NOTES


NOTES = (
    "raw: one `rclone copy` with our number of files in flight, then `rclone check`; both ways start with the source "
    "in the page cache and the disks idle",
    "S3 is `rclone serve s3` over the same disk, on the same processors",
    "killed: the process that copies, with -9, at times drawn from the length of a whole copy",
)


def figures(over: str, size: int, pairs: list[Pair]) -> list[Figure]:
    """Of one store. The goal is for the medians."""
    raw, ours = median([p.raw for p in pairs]), median([p.ours for p in pairs])
    rate = f"{size / ours / 1e6:,.0f} MB/s"
    return [
        Figure(
            name=f"{over}: copied and compared ({rate})",
            value=ours,
            unit="s",
            other=RAW,
            other_value=raw,
            at_most=raw / SHARE,
        ),
        Figure(name=f"{over}: read back at the target, all of it", value=median([p.prove for p in pairs]), unit="s"),
        Figure(name=f"{over}: published, on the disk", value=median([p.publish for p in pairs]), unit="s"),
    ]


def kill_figures(over: str, killed: Killed) -> list[Figure]:
    """What `kills` found."""
    return [
        Figure(
            name=f"{over}: whole files copied again after {killed.kills} kills",
            value=killed.again,
            unit="",
            at_most=0,
        ),
        Figure(
            name=f"{over}: all {killed.kills + 1} tries together",
            value=killed.tries,
            unit="s",
            other="the copy without a kill",
            other_value=killed.whole,
        ),
    ]


# -- one run of each way


async def pair(source: Path, root: str, env: Mapping[str, str], over: str, number: int) -> Pair:
    """Both ways, the first one in turn."""
    seconds: dict[str, float] = {}
    order = order_of(source, f"{root}/ours{number}")
    steps = {"raw": lambda: raw(source, f"{root}/raw{number}", env), "ours": lambda: copy(order, env)}
    for name in ("raw", "ours") if number % 2 == 0 else ("ours", "raw"):
        rest()
        start = time.perf_counter()
        await steps[name]()
        seconds[name] = time.perf_counter() - start
        say(f"{over}: {name} {seconds[name]:.1f} s")
    for name, step in (("prove", prove), ("publish", publish)):
        begun = time.perf_counter()
        await step(order, env)
        seconds[name] = time.perf_counter() - begun
        say(f"{over}: {name} {seconds[name]:.1f} s")
    for name in ("raw", "ours"):
        await Rclone(env).ask(["purge", f"{root}/{name}{number}"])
    return Pair(**seconds)


async def raw(source: Path, target: str, env: Mapping[str, str]) -> None:
    """What a person would type."""
    rclone = Rclone(env)
    folder, at_once = str(source / ENTRY), str(Rules().files_at_once)
    await rclone.transfer(["copy", folder, f"{target}/{ENTRY}", "--transfers", at_once], lambda _stats: None)
    await rclone.ask(["check", folder, f"{target}/{ENTRY}", "--checkers", at_once])


async def copy(order: CopyOrder, env: Mapping[str, str]) -> None:
    """Our step of that name."""
    await Copying(_ground(order, env), _meters()).run()


async def prove(order: CopyOrder, env: Mapping[str, str]) -> None:
    """Likewise. Raises TemporaryError when the proof fails."""
    proof = await Finishing(_ground(order, env), _meters()).prove()
    if not proof.ok:
        raise TemporaryError(f"the copy was not proven: {proof.text}")


async def publish(order: CopyOrder, env: Mapping[str, str]) -> None:
    """Likewise."""
    await Finishing(_ground(order, env), _meters()).publish()


def _ground(order: CopyOrder, env: Mapping[str, str]) -> Ground:
    return Ground(order, Rules(), Rclone(env))


def _meters() -> Meters:
    return Meters(lambda _progress: None)


# -- kills


def kills(source: Path, root: str, under: Path, env: Mapping[str, str], count: int) -> Killed:
    """Copies once without a kill, then again with `count` of them; each resumes what the one before left.

    `under`: the folder of this machine that the store is over.
    Raises TemporaryError when the end is not what the source is.
    """
    start = time.perf_counter()
    child(order_of(source, f"{root}/whole"), env).wait()
    whole = time.perf_counter() - start
    asyncio.run(Rclone(env).ask(["purge", f"{root}/whole"]))
    order = order_of(source, f"{root}/killed")
    left, again, spent = count, 0, 0.0
    seen: dict[str, int] = {}
    while True:
        start = time.perf_counter()
        process = child(order, env)
        if left:
            ended = _ends_within(process, random.uniform(0, whole))  # noqa: S311 - a time, no secret
            process.kill()
        code = process.wait()
        spent += time.perf_counter() - start
        now = inodes(under / "killed")
        again += sum(now.get(path, inode) != inode for path, inode in seen.items())
        seen = now
        if not left:
            break
        left -= 1
        if ended and code == 0 and left:  # it was done before it was killed: the next kills meet a new copy
            asyncio.run(Rclone(env).ask(["purge", f"{root}/killed"]))
            seen = {}
    if code != 0:
        raise TemporaryError(f"the last try ended with {code}")
    asyncio.run(prove(order, env))
    return Killed(kills=count, again=again, whole=whole, tries=spent)


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def inodes(root: Path) -> dict[str, int]:
    """Whole files of the checkpoint below a root, by their name. A file that is written again gets another inode."""
    found = {}
    for path in root.rglob("*.distcp"):
        found[path.name] = path.stat().st_ino
    return found


def child(order: CopyOrder, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A process that copies; everything it starts dies with it."""
    words = [sys.executable, "-m", "bench.copying", order.model_dump_json()]
    return subprocess.Popen(words, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True)


# -- what is copied, and where to


def make(root: Path, size: int, files: int) -> None:
    """A checkpoint as Megatron-Core lays it out, of random bytes."""
    (root / ENTRY).mkdir(parents=True)
    block = os.urandom(1 << 20)
    for number in range(files):
        left = size // files
        with (root / ENTRY / f"__{number}_0.distcp").open("wb") as file:
            while left > 0:
                salt = os.urandom(16)
                left -= file.write((salt + block)[: min(left, len(block))])
    for marker in MARKERS:
        (root / marker).write_text("{}")


def order_of(source: Path, target: str) -> CopyOrder:
    """The order of a copy."""
    op = copy_op(str(source), ENTRY, target)
    return CopyOrder(cluster="bench", op=op, source=str(source), target=target, parts=PARTS)


@contextmanager
def store(over: str, place: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Where is copied to, and the environment for it."""
    env = {**os.environ, "RCLONE_CONFIG": os.devnull}
    if over == "local":
        (place / "local").mkdir()
        yield str(place / "local"), env
        return
    (place / "s3" / "bucket").mkdir(parents=True)
    key, secret, address = "BENCHKEY0001", "bench-secret-0001", f"127.0.0.1:{free_port()}"
    words = ["serve", "s3", str(place / "s3"), "--addr", address, "--auth-key", f"{key},{secret}"]
    process = subprocess.Popen(
        [str(rclone_program()), *words], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    names = {"TYPE": "s3", "PROVIDER": "Rclone", "ENDPOINT": f"http://{address}"}
    names |= {"ACCESS_KEY_ID": key, "SECRET_ACCESS_KEY": secret}
    env |= {f"RCLONE_CONFIG_BENCH_{name}": value for name, value in names.items()}
    try:
        _wait(lambda: _answers(env))
        yield "bench:bucket", env
    finally:
        process.kill()
        process.wait()


def _answers(env: Mapping[str, str]) -> bool:
    try:
        asyncio.run(Rclone(env).ask(["lsjson", "bench:"], limit=5))
    except (TemporaryError, PermanentError):
        return False
    return True


def _wait(look: Callable[[], bool]) -> None:
    for _ in range(100):
        if look():
            return
        time.sleep(0.1)
    raise TemporaryError("the S3 server did not answer in time")


def rest() -> None:
    """Until the disks have written what is due."""
    os.sync()
    time.sleep(BETWEEN)


if __name__ == "__main__":
    asyncio.run(copy(CopyOrder.model_validate_json(sys.argv[1]), os.environ))

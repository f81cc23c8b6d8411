#!/usr/bin/env python3
"""A small training program with the habits of a big one, for tests and the demo.

One process per rank (``SLURM_PROCID`` of ``SLURM_NTASKS``, or ``RANK`` of ``WORLD_SIZE``) trains a logistic
regression, data-parallel: at each step every rank gives its part of the gradient and waits for all others, so
when one dies the rest hang, as they would in a collective. Everything is deterministic, and the state holds
the random generator too: the loss after step N is the same however often the run was interrupted.

Files in the checkpoint folder:
  ``generations/g<epoch>.<restart>``           one per start seen; the highest is the only one that may write
  ``step_<8 digits>.g<epoch>.<restart>/``      ``rank_<r>.json`` for each rank, then ``COMPLETE``, written last
  ``sync.g<epoch>.<restart>/``                 how the ranks of one start meet and exchange gradients

The generation is ``GPU_RUNBOOKS_EPOCH`` (one per submission) with ``GPU_RUNBOOKS_RESTART`` (on Kubernetes, from the
pod's annotation) or ``SLURM_RESTART_COUNT``, 0 if unset.
SIGUSR1 asks for a checkpoint at the next step, SIGTERM ends a rank at once. With ``--dumps`` the ranks leave Flight
Recorder dumps when one waits too long, and on SIGUSR2 (`flight_recorder.py`, which then lies beside this file).
Exit codes: 0 all steps done, 75 a higher generation exists, 143 SIGTERM, else as an error gives it.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

STALE, TERMINATED = 75, 143

Json = dict[str, Any]
T = TypeVar("T")


class StaleGenerationError(Exception):
    """Somebody newer may write, so this process may not."""


class Generation(NamedTuple):
    """The fencing token: a later start of the job compares greater."""

    epoch: int
    restart: int

    def __str__(self) -> str:
        """Write it as ``0.1``."""
        return f"{self.epoch}.{self.restart}"

    @classmethod
    def of_environment(cls) -> "Generation":
        """Read the token that this start was given."""
        restart = os.environ.get("GPU_RUNBOOKS_RESTART") or os.environ.get("SLURM_RESTART_COUNT") or "0"
        return cls(int(os.environ.get("GPU_RUNBOOKS_EPOCH", "0")), int(restart))


# --- files


def write_durably(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step that survives a power loss."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_quickly(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step; it need not survive anything."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> Json:
    """Read an object; empty when there is no file or no JSON in it."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def read_message(path: Path, **expected: object) -> Json:
    """Read an object; empty unless it has these values."""
    content = read_json(path)
    return content if expected.items() <= content.items() else {}


def wait_for(look: Callable[[], T]) -> T:
    """Poll until there is something. Without end: whoever waits for a dead peer hangs, until SIGTERM."""
    pause = 0.001
    while not (found := look()):
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    return found


# --- the model


def lcg(state: int) -> int:
    """Give the next state of a 64-bit linear congruential generator."""
    return (state * 6364136223846793005 + 1442695040888963407) % 2**64


def uniform(state: int) -> float:
    """Turn a generator's state into a number from -1 to 1."""
    return (state >> 11) / 2**52 - 1


@dataclass
class Model:
    """Logistic regression by stochastic gradient descent with momentum."""

    SIZE, SAMPLES, BATCH, RATE, INERTIA = 8, 256, 32, 0.05, 0.9

    weights: list[float] = field(default_factory=lambda: [0.0] * Model.SIZE)
    momentum: list[float] = field(default_factory=lambda: [0.0] * Model.SIZE)
    rng: int = 20240817

    @staticmethod
    def data() -> list[tuple[list[float], int]]:
        """Make the samples: points in a cube, cut by a plane, with a little noise."""
        state, samples = 7, []
        for _ in range(Model.SAMPLES):
            point = []
            for _ in range(Model.SIZE):
                state = lcg(state)
                point.append(uniform(state))
            state = lcg(state)
            side = sum(x * (i - 3) for i, x in enumerate(point)) + uniform(state)
            samples.append((point, int(side > 0)))
        return samples

    def error(self, point: list[float], label: int) -> tuple[float, float]:
        """Give the loss at one sample and its slope."""
        score = sum(w * x for w, x in zip(self.weights, point, strict=True))
        probability = 1 / (1 + math.exp(-score))
        return -math.log(probability if label else 1 - probability), probability - label

    def share(self, data: list[tuple[list[float], int]], rank: int, world: int) -> tuple[list[float], float]:
        """Give this rank's part of the batch gradient and of the mean loss over all samples."""
        loss = sum(self.error(*sample)[0] for sample in data[rank::world]) / len(data)
        gradient = [0.0] * self.SIZE
        for _ in range(self.BATCH):
            self.rng = lcg(self.rng)
            index = (self.rng >> 33) % len(data)
            if index % world == rank:
                slope = self.error(*data[index])[1] / self.BATCH
                gradient = [g + slope * x for g, x in zip(gradient, data[index][0], strict=True)]
        return gradient, loss

    def apply(self, gradient: list[float]) -> None:
        """Take one step against the whole gradient."""
        self.momentum = [self.INERTIA * m - self.RATE * g for m, g in zip(self.momentum, gradient, strict=True)]
        self.weights = [w + m for w, m in zip(self.weights, self.momentum, strict=True)]

    def shard(self, rank: int, world: int) -> Json:
        """Give the part of the state that this rank saves."""
        own = range(rank, self.SIZE, world)
        return {"rng": self.rng, "parameters": {str(i): [self.weights[i], self.momentum[i]] for i in own}}

    def restore(self, shards: list[Json]) -> None:
        """Take over the state from all shards of a checkpoint, whatever the number of ranks was."""
        for shard in shards:
            self.rng = shard["rng"]
            for index, (weight, momentum) in shard["parameters"].items():
                self.weights[int(index)], self.momentum[int(index)] = weight, momentum


# --- checkpoints


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of one folder, as one start of the job may read and write them."""

    root: Path
    generation: Generation
    checked: bool = True

    def claim(self) -> None:
        """Announce this generation; each has its own file, so that a late one can never lower the highest."""
        if not self.checked:
            return
        self.refuse_if_stale()
        claims = self.root / "generations"
        claims.mkdir(exist_ok=True)
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": os.environ.get("SLURM_JOB_ID"),
            "time": now(),
        }
        write_durably(claims / f"g{self.generation}", json.dumps(about))

    def refuse_if_stale(self) -> None:
        """Raise if a higher generation has announced itself."""
        if not self.checked:
            return
        found = (re.fullmatch(r"g(\d+)\.(\d+)", path.name) for path in self.root.glob("generations/g*"))
        highest = max((Generation(int(match[1]), int(match[2])) for match in found if match), default=self.generation)
        if highest > self.generation:
            own, other = tuple(self.generation), tuple(highest)
            text = f"refusing to write: generation {own} is older than {other}"
            raise StaleGenerationError(text.replace(", ", ","))

    def folder(self, step: int) -> Path:
        """Name the folder of a step; one who does not check shares it with every other generation."""
        return self.root / (f"step_{step:08d}" + (f".g{self.generation}" if self.checked else ""))

    def save_shard(self, step: int, rank: int, content: Json) -> None:
        """Write one rank's part."""
        self.refuse_if_stale()
        folder = self.folder(step)
        folder.mkdir(exist_ok=True)
        write_durably(folder / f"rank_{rank}.json", json.dumps(content))

    def complete(self, step: int, world: int, session: str) -> None:
        """Wait until every shard of this start is there, then write the marker."""
        folder, names = self.folder(step), [f"rank_{rank}.json" for rank in range(world)]
        for name in names:
            wait_for(partial(read_message, folder / name, session=session))
        self.refuse_if_stale()
        hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
        marker = {"step": step, "world": world, "generation": str(self.generation), "shards": hashes}
        write_durably(folder / "COMPLETE", json.dumps(marker, indent=1))

    def candidates(self) -> Iterator[Path]:
        """List step folders, the one to resume from first: highest generation up to ours, then highest step."""
        found = []
        for path in self.root.glob("step_*"):
            match = re.fullmatch(r"step_(\d{8})(?:\.g(\d+)\.(\d+))?", path.name)
            if not match:
                continue
            generation = Generation(int(match[2] or -1), int(match[3] or -1))
            if not self.checked:
                found.append((Generation(0, 0), int(match[1]), path))
            elif generation <= self.generation:
                found.append((generation, int(match[1]), path))
        yield from (path for _, _, path in sorted(found, reverse=True))

    @staticmethod
    def load(folder: Path) -> tuple[int, list[Json]]:
        """Return step and shards of a complete checkpoint; ValueError says why it is none."""
        marker = read_json(folder / "COMPLETE")
        if not marker:
            raise ValueError("no COMPLETE marker")
        shards = []
        for name, digest in marker["shards"].items():
            try:
                content = (folder / name).read_bytes()
            except FileNotFoundError:
                raise ValueError(f"{name} is missing") from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError(f"{name} is not the file that was saved")
            shards.append(json.loads(content))
        return int(marker["step"]), shards

    def newest(self) -> Path | None:
        """Find the checkpoint to resume from and say which ones are passed over."""
        for folder in self.candidates():
            try:
                self.load(folder)
            except ValueError as error:
                say(f"skipping {folder.name}: {error}")
            else:
                return folder
        return None


# --- the ranks of one start


@dataclass
class Group:
    """The ranks of one start, which meet and exchange through files."""

    folder: Path
    rank: int
    world: int
    session: str = ""

    def meet(self, choose: Callable[[], Path | None]) -> Path | None:
        """Wait for all ranks; rank 0 chooses the checkpoint to resume from.

        Files that an earlier start has left cannot fool anyone: rank 0 gives the session a new name, and a
        rank goes on only when rank 0 has seen the number that the rank has just made.
        """
        self.folder.mkdir(exist_ok=True)
        if self.rank == 0:
            self.session = uuid.uuid4().hex
            write_quickly(self.folder / "session", json.dumps({"session": self.session}))
            joins = [wait_for(partial(self._joined, rank)) for rank in range(1, self.world)]
            choice = choose()
            answer = {"numbers": [join["number"] for join in joins], "resume": choice.name if choice else ""}
            write_quickly(self.folder / "go", json.dumps(answer))
            return choice
        name = wait_for(partial(self._invitation, uuid.uuid4().hex))["resume"]
        return self.folder.parent / name if name else None

    def _joined(self, rank: int) -> Json:
        return read_message(self.folder / f"join_{rank}", session=self.session)

    def _invitation(self, number: str) -> Json:
        session = read_json(self.folder / "session").get("session", "")
        if session != self.session:
            self.session = session
            write_quickly(self.folder / f"join_{self.rank}", json.dumps({"session": session, "number": number}))
        answer = read_json(self.folder / "go")
        return answer if number in answer.get("numbers", ()) else {}

    def exchange(self, step: int, content: Json) -> list[Json]:
        """Give our content for a step and wait for everybody's, in the order of the ranks.

        Two files per rank are enough: nobody can be two steps ahead of anybody.
        """
        mark = {"session": self.session, "step": step}
        write_quickly(self._slot(self.rank, step), json.dumps(content | mark))
        return [wait_for(partial(read_message, self._slot(rank, step), **mark)) for rank in range(self.world)]

    def ask_for_dumps(self, number: int) -> None:
        """Make every rank of this start write what it waits for, once for each number."""
        write_quickly(self.folder / "dump", json.dumps({"session": self.session, "number": number}))

    def dumps_asked(self) -> int:
        """The newest such number, 0 for none."""
        return int(read_message(self.folder / "dump", session=self.session).get("number", 0))

    def _slot(self, rank: int, step: int) -> Path:
        return self.folder / f"rank_{rank}.{step % 2}"


# --- the run


def now() -> str:
    """Give the time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(text: str) -> None:
    """Print one line at once: who reads it wants to know how far we are now."""
    print(text, flush=True)


class CheckpointWish:
    """Whether SIGUSR1 has asked for a checkpoint since the last one."""

    pending = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Note the signal."""
        self.pending = True


def install_handlers(options: argparse.Namespace, wish: CheckpointWish) -> None:
    """Answer SIGUSR1 and SIGTERM, as far as the fault options allow."""
    if not options.no_signal_handler:
        signal.signal(signal.SIGUSR1, wish)
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(TERMINATED))
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def fail_on_purpose(options: argparse.Namespace, step: int, rank: int) -> None:
    """Play the faults that were asked for at this step."""
    if rank != options.fault_rank if options.hang_node is None else node_name() != options.hang_node:
        return
    if options.hang_from_step is not None and step >= options.hang_from_step:
        say(f"hanging on purpose at step {step} rank={rank}")
        if options.hang_how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_for(lambda: None)
    if step == options.fail_at_step:
        say(f"failing on purpose at step {step} rank={rank}")
        os._exit(options.exit_code)
    if step == options.raise_at_step:
        raise RuntimeError(f"loss is NaN at step {step} on rank {rank}")


def node_name() -> str:
    """Name the node as its cluster does."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def recorder_of(options: argparse.Namespace, group: Group) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Record the exchanges of this rank where dumps are wanted; SIGUSR2 writes one."""
    if options.dumps is None:
        return contextlib.nullcontext
    from flight_recorder import FlightRecorder

    recorder = FlightRecorder(
        options.dumps, group.rank, group.world, options.dump_after, group.ask_for_dumps, group.dumps_asked
    )
    signal.signal(signal.SIGUSR2, lambda _number, _frame: recorder.wanted.set())
    return partial(recorder.collective, "all_reduce", [Model.SIZE])


def train(options: argparse.Namespace, rank: int, world: int, wish: CheckpointWish) -> None:
    """Resume or start, then step until all steps are done."""
    generation = Generation.of_environment()
    root: Path = options.checkpoint_dir
    root.mkdir(parents=True, exist_ok=True)
    store = Checkpoints(root, generation, checked=not options.no_generation_check)
    store.claim()
    group = Group(root / f"sync.g{generation}", rank, world)
    origin = group.meet(store.newest)
    recorded = recorder_of(options, group)
    model, data, start = Model(), Model.data(), 0
    if origin:
        start, shards = store.load(origin)
        model.restore(shards)
    if rank == 0:
        say(f"resumed from step {start} gen={generation}" if origin else f"starting at step 0 gen={generation}")
    for step in range(start + 1, options.steps + 1):
        fail_on_purpose(options, step, rank)
        time.sleep(options.step_time)
        gradient, loss = model.share(data, rank, world)
        with recorded():
            messages = group.exchange(step, {"gradient": gradient, "loss": loss, "save": wish.pending})
        model.apply([math.fsum(parts) for parts in zip(*(m["gradient"] for m in messages), strict=True)])
        if rank == 0:
            total = math.fsum(m["loss"] for m in messages)
            say(f"step {step}/{options.steps} loss {total:.6f} t={now()} gen={generation} rank=0")
        if step % options.checkpoint_every == 0 or step == options.steps or any(m["save"] for m in messages):
            shard = {"step": step, "rank": rank, "generation": str(generation), "session": group.session}
            store.save_shard(step, rank, shard | model.shard(rank, world))
            wish.pending = False
            if rank == 0:
                store.complete(step, world, group.session)
                say(f"saved step {step} gen={generation}")
    if rank == 0:
        if start < options.steps:  # the last checkpoint has shown that nobody waits for us any more
            shutil.rmtree(group.folder, ignore_errors=True)
        say(f"done step {options.steps}/{options.steps}")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="Small deterministic training with real checkpoints.")
    parser.add_argument("--steps", type=int, required=True, help="total number of steps")
    parser.add_argument("--step-time", type=float, default=0.1, help="seconds of pretended work per step")
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="shared by all ranks and all starts")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--dumps", type=Path, help="folder for Flight Recorder dumps: what each rank waits for")
    parser.add_argument("--dump-after", type=float, default=10, help="seconds of waiting after which all ranks dump")
    faults = parser.add_argument_group("faults, for tests")
    faults.add_argument("--fail-at-step", type=int, help="exit before this step is done")
    faults.add_argument("--exit-code", type=int, default=1, help="with which code --fail-at-step exits")
    faults.add_argument("--raise-at-step", type=int, help="raise an exception before this step is done")
    faults.add_argument("--fault-rank", type=int, default=0, help="the rank that fails or raises")
    faults.add_argument("--hang-from-step", type=int, help="stand still before each step from this one on")
    faults.add_argument("--hang-how", choices=("wait", "stop"), default="wait", help="in the program, or SIGSTOP")
    faults.add_argument("--hang-node", help="the ranks on this node hang, fail or raise, instead of --fault-rank")
    faults.add_argument("--no-signal-handler", action="store_true", help="SIGUSR1 and SIGTERM kill, as by default")
    faults.add_argument("--ignore-sigterm", action="store_true", help="only SIGKILL ends it")
    faults.add_argument("--no-generation-check", action="store_true", help="write whatever others have announced")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run one rank."""
    options, wish = parse(argv), CheckpointWish()
    install_handlers(options, wish)
    rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
    world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1)
    try:
        train(options, rank, world, wish)
    except StaleGenerationError as error:
        say(str(error))
        return STALE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The simulated training: what a script asks for, and how far a run has come at a given time. Pure functions."""

import math
from dataclasses import dataclass, replace

from pydantic import Field, ValidationError

from fleet.errors import InvalidInputError
from fleet.model import Value

DIRECTIVE = "#SIM "
_EPSILON = 1e-6
"""Tolerance for a time that was computed and stored before (seconds)."""


class TrainingPlan(Value):
    """The `#SIM key=value ...` directives of a job's script. Times in simulated seconds."""

    nodes: int = Field(default=1, ge=1)
    gpus: int = Field(default=8, ge=0)
    steps: int = Field(default=400, ge=1)
    step_time: float = Field(default=0.5, gt=0)
    checkpoint_every: int = Field(default=20, ge=1)
    save_time: float = Field(default=0.2, ge=0)
    keep: int = Field(default=5, ge=1)
    """Newest checkpoints that it leaves in its folder, where they are real files."""
    load_time: float = Field(default=1.0, ge=0)
    fail_at: int | None = Field(default=None, ge=1)
    """Each attempt that comes to this step prints a traceback and ends with `exit_code`."""
    exit_code: int = Field(default=1, ge=0, le=255)
    """A `fail_at` with exit code 0 is the job that "succeeds" short of its last step."""
    ignores_term: bool = False
    signal: str = "USR1"
    """The signal that makes it save; any other one kills it."""
    epoch: int = Field(default=0, ge=0)
    """First part of the generation `epoch.restarts` of a first submission; a later one's is counted on from it."""
    exclude: tuple[str, ...] = ()
    requeue: bool = True
    hold: bool = False


@dataclass(frozen=True)
class Track:
    """Where a run stands: `step` was finished at `at` (or loading ends at `at`)."""

    step: int
    at: float
    saving: bool = False
    """The save that follows `step` began at `at`."""
    save_asked: bool = False


@dataclass(frozen=True)
class Moved:
    """What happened until a given time."""

    track: Track
    saves: tuple[tuple[int, float], ...]
    """(step, time) of each checkpoint completed meanwhile."""
    ended: str | None
    """`done`, `failed` or None."""


def parse_script(script: str, options: tuple[str, ...] = ()) -> TrainingPlan:
    """Reads the directives, then the submit options `--nodes=N`, `--exclude=a,b`, `--no-requeue`, `--hold`.

    Raises InvalidInputError for a script without `#!` and for a directive that is unknown or has a wrong value.
    """
    if not script.startswith("#!"):
        raise InvalidInputError("a batch script starts with #!; nothing was submitted")
    given: dict[str, object] = {}
    for line in script.splitlines():
        if line.startswith(DIRECTIVE):
            for word in line[len(DIRECTIVE) :].split():
                key, _, value = word.partition("=")
                given[key] = tuple(value.split(",")) if key == "exclude" else value
    for option in options:
        key, _, value = option.partition("=")
        match key:
            case "--nodes":
                given["nodes"] = value
            case "--exclude":
                given["exclude"] = tuple(value.split(","))
            case "--no-requeue":
                given["requeue"] = False
            case "--hold":
                given["hold"] = True
            case _:
                raise InvalidInputError(
                    f"the simulated cluster knows no submit option {key!r}; nothing was submitted"
                )
    unknown = sorted(set(given) - set(TrainingPlan.model_fields))
    if unknown:
        known = ", ".join(TrainingPlan.model_fields)
        raise InvalidInputError(f"unknown #SIM directive {unknown[0]!r}; known: {known}; nothing was submitted")
    try:
        return TrainingPlan.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"#SIM {where}: {first['msg']}; nothing was submitted") from error


def _stop_step(plan: TrainingPlan, step: int) -> int:
    """The step at which the run ends by itself."""
    return plan.fail_at if plan.fail_at is not None and step < plan.fail_at <= plan.steps else plan.steps


def run_until(plan: TrainingPlan, track: Track, now: float) -> Moved:
    """Moves the run forward to `now`: steps, saves after each `checkpoint_every` and after a request, the end."""
    saves: list[tuple[int, float]] = []
    now += _EPSILON
    while True:
        if track.saving:
            finished = track.at + plan.save_time
            if finished > now:
                return Moved(track, tuple(saves), None)
            saves.append((track.step, finished))
            track = replace(track, saving=False, at=finished)
            continue
        if track.step >= plan.steps:
            return Moved(track, tuple(saves), "done")
        last = _stop_step(plan, track.step)
        every = plan.checkpoint_every
        target = min(last, track.step + 1 if track.save_asked else (track.step // every + 1) * every)
        reached = track.at + (target - track.step) * plan.step_time
        if reached > now:
            whole = max(0, min(target - track.step - 1, math.floor((now - track.at) / plan.step_time)))
            track = replace(track, step=track.step + whole, at=track.at + whole * plan.step_time)
            return Moved(track, tuple(saves), None)
        track = Track(step=target, at=reached, saving=True)
        if target == plan.fail_at:
            return Moved(replace(track, saving=False), tuple(saves), "failed")


def ends_at(plan: TrainingPlan, track: Track) -> float:
    """When the run ends by itself if nothing disturbs it."""
    last = _stop_step(plan, track.step)
    every = plan.checkpoint_every
    saves = last // every - track.step // every + int(track.saving)
    if track.save_asked and (track.step + 1) % every and track.step + 1 < last:
        saves += 1
    if last == plan.fail_at:
        saves -= int(last % every == 0)
    elif last % every:
        saves += 1
    return track.at + (last - track.step) * plan.step_time + saves * plan.save_time


def loss_at(step: int) -> float:
    """A falling curve with a little ripple, the same for every run."""
    return 4.0 / math.sqrt(1.0 + step / 40.0) + 0.01 * math.sin(step)


def step_line(plan: TrainingPlan, step: int, at: float, generation: str) -> str:
    """One line of a step as a real training prints it."""
    return f"step {step}/{plan.steps} loss {loss_at(step):.6f} t={at:.3f} gen={generation} rank=0"

"""What a runbook would do, in words. The workflow shows these texts for approval, a dry run prints the same ones."""

from collections.abc import Mapping

from fleet.decision import Action, Decision
from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import NativeJob, NodeFacts, Phase, Value

MOVES = frozenset({Action.RESTART_IN_PLACE, Action.FAILOVER_IN_CLUSTER, Action.FAILOVER_ACROSS_CLUSTERS})
"""Actions that end an attempt and start another one."""

_MODES = {"auto": "at once", "propose": "after an approval", "approve": "after an approval", "observe": "never"}


class PlannedStep(Value):
    """One step of a plan: what it is called in `fleet.yaml`, what may happen without a person, and what it does."""

    step: str
    mode: str
    """auto, propose, approve or observe; empty where no mode applies."""
    when: str
    """`at once`, `after an approval`, `never`, or why it is left out."""
    text: str


def recovery_steps(
    *,
    in_place: bool,
    exclude: tuple[str, ...],
    signal: str | None,
    old: Attempt,
    generation: int,
) -> tuple[str, ...]:
    """The order of safe steps from attempt `old` to attempt `generation`."""
    where = "on the same nodes" if in_place else f"without {', '.join(exclude) or 'exclusions'}"
    return (
        f"ask for a checkpoint with {signal}" if signal else "no checkpoint signal is declared: skip it",
        f"stop attempt {old.generation} with grace and keep the job held",
        f"prove that its ranks are gone from {', '.join(old.nodes) or 'nowhere'}",
        f"start attempt {generation} {where}, first in line",
        "wait for a new training step",
    )


def transfer_steps(old: Attempt, generation: int, signal: str | None, to: str) -> tuple[str, ...]:
    """The order of safe steps from attempt `old` to attempt `generation` in another cluster."""
    return (
        f"choose {to or 'the best other cluster'} and try everything there without changing anything",
        f"ask for a checkpoint with {signal}" if signal else "no checkpoint signal is declared: skip it",
        f"stop attempt {old.generation} with grace and keep the job held in {old.cluster}",
        f"prove that its ranks are gone from {', '.join(old.nodes) or 'nowhere'}",
        "copy the newest complete checkpoint and prove it where it lies then",
        f"submit attempt {generation} there and wait for a new training step",
        f"end the held job in {old.cluster}",
    )


def decided_steps(decision: Decision, native: NativeJob, ledger: Ledger) -> tuple[str, ...]:
    """What follows from a decision on a job; empty when nothing in the cluster would change."""
    if decision.action not in MOVES or ledger.last is None:
        return ()
    if decision.action is Action.FAILOVER_ACROSS_CLUSTERS:
        return transfer_steps(ledger.last, ledger.generation + 1, native.tokens.checkpoint_signal, "")
    return recovery_steps(
        in_place=decision.action is Action.RESTART_IN_PLACE,
        exclude=decision.exclude,
        signal=native.tokens.checkpoint_signal,
        old=ledger.last,
        generation=ledger.generation + 1,
    )


def observed_ledger(job: str, native: NativeJob) -> Ledger:
    """The ledger that adopting `native` now would begin: one attempt while it runs, none before."""
    ledger = Ledger(job=job, submitted_at=native.submitted_at)
    if native.phase is not Phase.RUNNING:
        return ledger
    return ledger.with_attempt(
        Attempt(
            generation=1,
            cluster=native.cluster,
            native_id=native.native_id,
            restarts=native.restarts,
            rung=Rung.FIRST,
            nodes=native.nodes,
            ordered_at=native.submitted_at,
            running_at=native.started_at,
        )
    )


# -- the steps of a node's repair, one text for the runbook's questions and the dry run


def isolate_steps(node: str) -> tuple[str, ...]:
    return (f"drain {node} with our mark", "running work is not touched")


def reboot_steps(node: str) -> tuple[str, ...]:
    return (f"reboot {node}", "wait for a newer boot", "it stays isolated until it passed the check")


def power_off_steps(node: str) -> tuple[str, ...]:
    return (f"power off {node}", "read it back as off")


def return_steps() -> tuple[str, ...]:
    return ("take our mark and reservation away",)


def heal_steps(
    facts: NodeFacts,
    holders: Mapping[str, bool],
    *,
    rung: str,
    modes: Mapping[str, str],
    out: tuple[str, ...] = (),
    limit: int,
) -> tuple[PlannedStep, ...]:
    """The named steps of `HealNode` for a node as it is now.

    `holders` says of each job on it whether it is supervised; `out` are the nodes of the cluster that hold a lease
    already and `limit` how many may; `rung` is the verdict's first repair rung.
    """
    node = facts.node
    steps = [_lease(node, out, limit)]
    if facts.foreign_drain:
        text = f"it is drained by somebody else ('{facts.reason or 'no reason'}'); it stays drained by its owner"
        steps.append(PlannedStep(step="isolate", mode="", when="asks a person first", text=text))
    elif facts.op is not None:
        text = f"isolated already with our mark gpu-runbooks:{facts.op}, which is taken over"
        steps.append(PlannedStep(step="isolate", mode="", when="at once", text=text))
    else:
        steps.append(_moded("isolate", modes, isolate_steps(node)))
    if any(holders.values()):
        steps.append(_moded("evacuate", modes, (_evacuation(holders),)))
    else:
        steps.append(PlannedStep(step="evacuate", mode="", when="at once", text=_evacuation(holders)))
    if not facts.responding:
        steps.append(_moded("fence", modes, power_off_steps(node)))
    if rung == "person":
        text = "the catalogue says that a person must repair this"
        steps.append(PlannedStep(step="reboot", mode="", when="asks a person first", text=text))
    elif rung != "none":
        steps.append(_moded("reboot", modes, reboot_steps(node)))
    steps.append(_moded("check", modes, ("run the quick check on the isolated node",)))
    if facts.foreign_drain:
        steps.append(PlannedStep(step="return", mode="", when="never", text="it stays drained by its owner"))
    else:
        steps.append(_moded("return", modes, return_steps()))
    return tuple(steps)


def _lease(node: str, out: tuple[str, ...], limit: int) -> PlannedStep:
    others = tuple(n for n in out if n != node)
    if len(others) >= limit:
        text = f"{len(others)} of at most {limit} nodes are out: {', '.join(others) or 'none may be'}"
        return PlannedStep(step="lease", mode="", when="waits for room", text=text)
    return PlannedStep(step="lease", mode="", when="at once", text=f"{len(others)} of at most {limit} nodes are out")


def _evacuation(holders: Mapping[str, bool]) -> str:
    ours = [name for name, supervised in holders.items() if supervised]
    others = [name for name, supervised in holders.items() if not supervised]
    parts = []
    if ours:
        parts.append(f"{', '.join(ours)}: moved by the job's own runbook")
    if others:
        parts.append(f"{', '.join(others)}: not ours, waited for until the drain's deadline")
    return "; ".join(parts) or "nobody holds it"


def _moded(step: str, modes: Mapping[str, str], texts: tuple[str, ...]) -> PlannedStep:
    mode = modes.get(step, "propose")
    return PlannedStep(step=step, mode=mode, when=_MODES.get(mode, "after an approval"), text="; ".join(texts))


def when(mode: str) -> str:
    """What a mode means for a step: at once, after an approval, or never."""
    return _MODES.get(mode, "after an approval")

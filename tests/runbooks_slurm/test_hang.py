"""A job on real Slurm hangs: its ranks' own dumps name the rank that all others wait for, and so its node."""

from fleet.faults.evidence import FaultClass
from fleet.ledger import Rung
from fleet.model import NodeState, Phase
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.training import resumed, steps_of

SICK = "alpha2"
"""Slurm gives the first job of a cluster its first nodes: alpha1 and this one."""
LIMITS = {"stall_after": "12s", "checkpoint_grace": "1s", "step_timeout": "60s"}
"""The ranks write their dumps after 4 s in one collective. None that hangs answers a wish for a checkpoint."""


@scenario(limits=LIMITS)
async def test_a_rank_that_stands_still_is_named_by_the_dumps_restarted_in_place_once_and_then_left(
    stage: Stage,
) -> None:
    await hangs_twice_and_leaves(stage, "wait", "hang:missing_rank")


@scenario(limits=LIMITS)
async def test_a_rank_that_is_stopped_and_leaves_no_dump_is_named_by_those_of_the_others(stage: Stage) -> None:
    await hangs_twice_and_leaves(stage, "stop", "hang:no_dump")


async def hangs_twice_and_leaves(stage: Stage, how: str, rule: str) -> None:
    """Every step from 25 on hangs wherever a rank is on the sick node; the last checkpoint before is of step 20."""
    dumps = stage.lab.work / "dumps"
    faults = f"--dumps {dumps} --dump-after 4 --hang-from-step 25 --hang-node {SICK} --hang-how {how}"
    tokens = f"gpu-runbooks.io/supervise gpu-runbooks.io/checkpoint-signal=USR1 gpu-runbooks.io/dumps={dumps}"
    booted = await stage.node(SICK)
    native_id = await stage.sbatch(stage.spec(train=faults, tokens=tokens))
    await stage.trains("train", 1)
    assert await stage.nodes_of("train") == ("alpha1", SICK)
    third = await stage.trains("train", 3)
    stage.hurry()
    assert await stage.result("job/train") == "done"
    assert await stage.result(f"node/alpha/{SICK}") == "checked and back at work"

    ledger = (await stage.view("job/train")).ledger
    assert ledger is not None
    attempts = [(a.rung, a.nodes, a.cause) for a in ledger.attempts]
    elsewhere = ledger.attempts[2].nodes
    assert attempts == [
        (Rung.FIRST, ("alpha1", SICK), ""),
        (Rung.IN_PLACE, ("alpha1", SICK), rule),
        (Rung.IN_CLUSTER, elsewhere, rule),
    ]
    assert SICK not in elsewhere
    for hung in ledger.attempts[:2]:
        assert hung.verdict is not None
        assert (hung.verdict.fault, hung.verdict.culprit.node) == (FaultClass.UNKNOWN, SICK)
        assert "rank 1" in hung.verdict.title
    native = await stage.native(native_id)
    assert (native.phase, native.restarts, native.excluded) == (Phase.SUCCEEDED, 2, (SICK,))
    lines = stage.output("train")
    assert (resumed(lines, "0.1"), resumed(lines, "0.2")) == (20, 20)
    assert [max(s for s, _, g in steps_of(lines) if g == gen) for gen in ("0.0", "0.1", "0.2")] == [24, 24, 1000]

    assert third.verdict is not None
    for ask in (("why", f"alpha/{SICK}"), ("describe", "train"), ("report", "train")):
        told = await stage.cli(*ask)
        words = "".join(told.out.split())  # lines are broken for a terminal
        assert "".join(third.verdict.title.split()) in words, told

    checked = await stage.node(SICK)
    assert (checked.state, checked.drained, checked.op, checked.boot) == (NodeState.UP, False, None, booted.boot)
    node = "\n".join((await stage.view(f"node/alpha/{SICK}")).story)
    assert "isolated with mark" in node
    assert "check passed: 8 GPUs" in node
    assert {name for name in await stage.runbooks() if name.startswith("node/")} == {f"node/alpha/{SICK}"}

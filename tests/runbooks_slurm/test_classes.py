"""Each class of verdict on real Slurm: which nodes the next attempt runs on, what becomes of the node, and what the
job's owner reads. A user fault is not moved, whatever node it was seen on."""

from fleet.faults.evidence import FaultClass
from fleet.ledger import Rung
from fleet.model import Phase
from tests.clients.stage import CONTAINED
from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage

MMU_FAULT = (
    "[ 1234.5] NVRM: Xid (PCI:0000:ab:00): 31, pid=1234, name=python3, MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0\n"
)


async def reported(stage: Stage, line: str) -> tuple[str, tuple[str, ...], str]:
    """A job trains, and a kernel line of its second node is handed in: its native id, its nodes, that node's boot."""
    native_id = await stage.train()
    nodes = await stage.nodes_of("train")
    boot = (await stage.node(nodes[1])).boot
    assert (await stage.cli("evidence", f"alpha/{nodes[1]}", "-", stdin=line)).code == 0
    return native_id, nodes, boot


async def judged(stage: Stage) -> FaultClass:
    """Class of the job's last verdict."""
    verdict = (await stage.view("job/train")).verdict
    assert verdict is not None
    return verdict.fault


async def assert_untouched(stage: Stage, node: str, boot: str) -> None:
    """In service as before, and no runbook of its own ever ran."""
    facts = await stage.node(node)
    assert (facts.drained, facts.op, facts.boot) == (False, None, boot)
    assert not [name for name in await stage.runbooks() if name.startswith("node/")]


@scenario()
async def test_a_transient_fault_restarts_on_the_same_nodes_and_leaves_the_node_in_service(stage: Stage) -> None:
    native_id, nodes, boot = await reported(stage, CONTAINED)
    view = await stage.trains("train", 2)
    native = await stage.native(native_id)
    assert (native.phase, native.nodes, native.restarts, native.excluded) == (Phase.RUNNING, nodes, 1, ())
    assert view.ledger is not None
    assert [(a.rung, a.cause) for a in view.ledger.attempts] == [(Rung.FIRST, ""), (Rung.IN_PLACE, "xid:94")]
    assert await judged(stage) is FaultClass.TRANSIENT
    await assert_untouched(stage, nodes[1], boot)


@scenario()
async def test_a_user_fault_seen_on_a_node_moves_nothing_and_its_owner_reads_the_cause(stage: Stage) -> None:
    native_id, nodes, boot = await reported(stage, MMU_FAULT)

    async def refused() -> str:
        return next((line for line in (await stage.view("job/train")).story if "not moved: " in line), "")

    why = await stage.until(refused, "the job is not moved")
    assert "is a fault of the job itself" in why
    shown = " ".join((await stage.cli("describe", "train")).out.split())
    assert "the program touched GPU memory that is not its own" in shown, shown
    assert nodes[1] in shown
    assert await judged(stage) is FaultClass.USER
    stage.hurry()
    assert await stage.result("job/train") == "done"
    native = await stage.native(native_id)
    assert (native.phase, native.nodes, native.restarts) == (Phase.SUCCEEDED, nodes, 0)
    await assert_untouched(stage, nodes[1], boot)


@scenario()
async def test_an_unknown_end_is_tried_in_place_then_elsewhere_and_at_the_same_step_again_is_the_jobs_own(
    stage: Stage,
) -> None:
    """No node is blamed, so none is checked; the job's own nodes are left all the same."""
    native_id = await stage.sbatch(stage.spec(train="--fail-at-step 25 --exit-code 9"))
    await stage.trains("train", 1)
    first = await stage.nodes_of("train")
    boot = (await stage.node(first[0])).boot
    result = await stage.result("job/train")
    assert "user fault, not restarted" in result
    assert "struck at training step 24 in attempts 1 and 3 on different nodes" in result
    ledger = (await stage.view("job/train")).ledger
    assert ledger is not None
    assert [a.rung for a in ledger.attempts] == [Rung.FIRST, Rung.IN_PLACE, Rung.IN_CLUSTER]
    assert [a.nodes for a in ledger.attempts[:2]] == [first, first]
    assert not set(ledger.attempts[2].nodes) & set(first)
    assert await judged(stage) is FaultClass.UNKNOWN
    native = await stage.native(native_id)
    assert (native.phase, native.restarts) == (Phase.FAILED, 2)
    await assert_untouched(stage, first[0], boot)

"""What is the job's own fault is not moved; its owner reads the cause. A passing failure is tried again."""

from fleet.faults.evidence import FaultClass
from fleet.model import Phase
from tests.clients.stage import CONTAINED
from tests.runbooks_kubernetes.stage import Stage


async def test_an_exception_of_the_program_is_told_to_its_owner_and_not_moved(stage: Stage) -> None:
    native_id = await stage.apply("train", "--checkpoint-every", "0")
    result = await stage.result("job/train")
    assert "user fault, not restarted" in result
    assert "ZeroDivisionError" in result
    native = await stage.backend.job(native_id)
    assert (native.phase, native.restarts) == (Phase.FAILED, 0)
    view = await stage.view_if("job/train")
    assert view is not None
    assert view.verdict is not None
    assert view.verdict.fault is FaultClass.USER
    assert {j["metadata"]["name"] for j in (await stage.lab.get("jobs"))["items"]} == {"train"}


async def test_a_rank_that_dies_for_no_known_reason_is_started_again_on_its_nodes(stage: Stage) -> None:
    native_id = await stage.apply("train", "--fail-at-step", "70", "--exit-code", "9")
    await stage.trains("train", 1)
    await stage.held_and_saved(native_id)
    before = await stage.backend.job(native_id)
    await stage.trains("train", 2)
    after = await stage.backend.job(native_id)
    assert (after.restarts, after.fingerprint) == (1, before.fingerprint)
    assert sorted(after.nodes) == sorted(before.nodes)
    assert (await stage.backend.progress(native_id, 1)).resumed_from == 60
    jobs = {j["metadata"]["name"] for j in (await stage.lab.get("jobs"))["items"]}
    assert {"train", "train-g1"} <= jobs


async def test_a_transient_fault_restarts_on_the_same_nodes_and_leaves_the_node_in_service(stage: Stage) -> None:
    before = await stage.train()
    native_id = before.native_id
    hit = before.nodes[1]
    boot = (await stage.backend.node(hit)).boot
    assert (await stage.cli("evidence", f"gamma/{hit}", "-", stdin=CONTAINED)).code == 0
    view = await stage.trains("train", 2)
    after = await stage.backend.job(native_id)
    assert (sorted(after.nodes), after.restarts, after.excluded) == (sorted(before.nodes), 1, ())
    assert view.verdict is not None
    assert (view.verdict.fault, view.verdict.rule) == (FaultClass.TRANSIENT, "xid:94")
    node = await stage.backend.node(hit)
    assert (node.drained, node.op, node.boot) == (False, None, boot)
    assert not [name for name in await stage.runbooks() if name.startswith("node/")]

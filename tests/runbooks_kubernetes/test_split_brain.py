"""A node is lost under a writing rank: nothing starts before a receipt, and then the job trains on elsewhere."""

from fleet.model import Phase, ReceiptGrade
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_kubernetes.test_lost_gpu import looking


async def test_a_kubelet_that_dies_under_a_writing_rank_is_fenced_before_the_next_attempt(stage: Stage) -> None:
    first = await stage.train()
    native_id = first.native_id
    lost = first.nodes[1]
    async with looking(stage, "train") as seen:
        await stage.lab.lab("kubelet-kill", lost)
        view = await stage.trains("train", 2)
    assert all(len(together) < 2 for together in seen)
    assert {frozenset({0}), frozenset({1})} <= seen
    again = await stage.backend.job(native_id)
    assert (again.phase, again.restarts) == (Phase.RUNNING, 1)
    assert lost not in again.nodes
    assert view.ledger is not None
    receipt = view.ledger.attempts[0].receipt
    assert receipt is not None
    assert {r.node for r in receipt.nodes} == set(first.nodes)
    grades = {r.node: r.grade for r in receipt.nodes}
    assert grades[lost] in {ReceiptGrade.POWER_OFF, ReceiptGrade.BOOT_CHANGED}
    assert await stage.result(f"node/gamma/{lost}") == "repaired, checked and back at work"
    pods = await stage.lab.get("pods", "-l", "batch.kubernetes.io/job-name=train")
    assert len(pods["items"]) == 2, "what was left of the first attempt is cleared away"

"""A job in trouble and its node: the whole way, seen in the fleet."""

from fleet.faults.evidence import FaultClass
from fleet.ledger import Rung
from fleet.model import ReceiptGrade
from tests.workflows.stage import Stage


async def test_a_lost_gpu_moves_the_job_excludes_the_node_and_heals_it(stage: Stage) -> None:
    native_id = await stage.supervise()
    sick = (await stage.nodes_of())[1]
    boot = stage.faults.boot(sick)
    saved = stage.faults.checkpoints(native_id)[-1][1]
    await stage.lose_gpu(sick)
    view = await stage.trains_again("train", native_id, 2)
    last = view.ledger and view.ledger.last
    assert last
    assert last.rung is Rung.IN_CLUSTER
    assert sick not in last.nodes
    assert (last.progress.resumed_from or 0) >= saved
    assert "back at work" in await stage.result(f"node/alpha/{sick}")
    facts = await stage.node(sick)
    assert (facts.drained, facts.gpus, facts.boot != boot) == (False, 8, True)
    effects = [e.op for e in stage.faults.effects() if e.op not in {"hold", "signal"}]
    assert sorted(effects) == sorted(
        ["attempt", "adopt", "isolate", "stop", "start_attempt", "attempt", "reboot", "check", "release"]
    )
    assert effects.index("stop") < effects.index("start_attempt") < effects.index("reboot")
    assert stage.faults.most_attempts_alive(native_id) == 1
    assert (await stage.native(native_id)).adopted
    assert view.ledger
    first = view.ledger.attempts[0]
    assert first.verdict
    assert first.verdict.fault is FaultClass.HARDWARE
    assert first.receipt
    assert first.receipt.grade() is ReceiptGrade.DAEMON_GONE
    (report,) = await stage.reports("job/train", "incident")
    assert "79" in report.title
    assert len(report.attempts) == 2

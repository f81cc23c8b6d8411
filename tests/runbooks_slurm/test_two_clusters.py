"""Two real clusters at once: what one's controller does is nothing to the other's runbook."""

from tests.runbooks_slurm.scenario import scenario
from tests.runbooks_slurm.stage import Stage
from tests.runbooks_slurm.watching import attempts_alive


@scenario(clusters=("alpha", "beta"))
async def test_a_frozen_controller_of_alpha_does_not_delay_a_failover_on_beta(stage: Stage) -> None:
    alpha, beta = stage.labs.values()
    first = await stage.train("first", lab=alpha)
    second = await stage.train("second", lab=beta)
    await stage.lose_gpu((await stage.nodes_of("first"))[1], alpha)
    await stage.at_step("job/first", "judge", "decide", "failover")
    await alpha.lab("ctld-freeze", "alpha")
    await stage.lose_gpu((await stage.nodes_of("second"))[1], beta)
    view = await stage.trains("second", 2)
    assert view.ledger is not None
    assert (await beta.backend.job(second)).restarts == 1
    behind = await stage.view("job/first")
    assert behind.ledger is not None
    assert behind.ledger.generation == 1
    assert not behind.result
    await alpha.lab("ctld-thaw", "alpha")
    await stage.trains("first", 2)
    assert (await alpha.backend.job(first)).restarts == 1
    assert attempts_alive(first, alpha.settings.conf) == {1: 2}

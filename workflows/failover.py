"""`FailoverInCluster`: the next attempt on other nodes of the same cluster, first in line."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from fleet.runbooks import VIEW, RecoveryInput, RecoveryResult, Runbook, View
    from workflows.recovery import Recovery


@workflow.defn(name=Runbook.FAILOVER)
class FailoverInCluster(Recovery):
    """Hardware faults: the culprit's node is excluded; its own runbook isolates it meanwhile."""

    kind = Runbook.FAILOVER

    @workflow.init
    def __init__(self, inp: RecoveryInput) -> None:
        super().__init__()
        self.take(inp)

    @workflow.run
    async def run(self, inp: RecoveryInput) -> RecoveryResult:
        return await self.recover()

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The recovery as `runbook describe` shows it."""
        return self.recovery_view()

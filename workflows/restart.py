"""`RestartInPlace`: the next attempt on the same nodes, in the same allocation where the backend can."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from fleet.runbooks import VIEW, RecoveryInput, RecoveryResult, Runbook, View
    from workflows.recovery import Recovery


@workflow.defn(name=Runbook.RESTART)
class RestartInPlace(Recovery):
    """Transient faults: nothing is excluded, the nodes are pinned until it runs."""

    kind = Runbook.RESTART

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

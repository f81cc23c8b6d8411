"""A runbook of nothing but steps, for `overhead`. On its own: the workflow sandbox loads this file again."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.model import Value
    from workflows.base import Book


class StepsInput(Value):
    """Which job is read, and how often."""

    cluster: str
    native_id: str
    count: int


@workflow.defn(name="BenchSteps")
class Steps(Book):
    """Reads a job `count` times, one after the other, by the same `act` as every runbook."""

    @workflow.run
    async def run(self, inp: StepsInput) -> None:
        arg = api.OnJob(cluster=inp.cluster, native_id=inp.native_id)
        for _ in range(inp.count):
            await self.act(api.READ_JOB, arg, cluster=inp.cluster)

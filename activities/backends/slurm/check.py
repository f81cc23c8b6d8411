"""Runs a check on an isolated node where no other work can land: inside our maintenance reservation, for a drained
node runs nothing and a resumed one takes work."""

from activities.backends.check_words import judge
from activities.backends.slurm.commands import Commands
from activities.backends.slurm.marks import check_name, reservation_name
from activities.backends.slurm.nodes import NodeOrders, refuse_foreign
from activities.backends.slurm.outcomes import Outcome
from activities.backends.slurm.view import ClusterView
from activities.backends.slurm.writes import read_back
from fleet.errors import RefusedError, TemporaryError
from fleet.identity import op_of_reason
from fleet.model import CheckResult, NodeFacts, Phase

COUNT = (
    "/bin/sh",
    "-c",
    'printf \'{"ok": true, "gpus": %s, "detail": "as granted by Slurm"}\\n\' "${SLURM_GPUS_ON_NODE:-0}"',
)
"""Without a configured check: a job that gets all GPUs says how many it got."""


class Checks:
    """`run_check` of one cluster."""

    def __init__(self, commands: Commands, view: ClusterView, orders: NodeOrders) -> None:
        self.commands = commands
        self.view = view
        self.orders = orders

    async def run(self, node: str, op: str, suite: str) -> CheckResult:
        facts = await self.view.node(node)
        refuse_foreign(facts, op)
        if facts.op != op:
            raise RefusedError(f"{node} is not isolated by {op}; isolate it before it is checked")
        await self._end_orphans(op)
        if facts.jobs and (await self.view.node(node)).jobs:
            raise RefusedError(f"{node} still has the jobs {', '.join(facts.jobs)}; evacuate it before it is checked")
        if not facts.responding:
            return CheckResult(node=node, suite=suite, ran=False, passed=False, detail="its slurmd does not answer")
        await self.orders.reserve(node, op)
        before = facts.reason if op_of_reason(facts.reason) == op else ""
        await self.orders.put_in_service(facts)
        result = await self._perform(facts, op, suite)
        await self._isolate_again(node, op, before or f"checked: {result.detail}")
        return result

    async def _isolate_again(self, node: str, op: str, reason: str) -> None:
        text = reason.split(": ", 1)[1] if op_of_reason(reason) else reason
        facts = await self.orders.isolate(node, op, text)
        if facts.op != op:
            raise RefusedError(f"{node} was drained by somebody else during its check ({facts.reason!r})")

    async def _perform(self, facts: NodeFacts, op: str, suite: str) -> CheckResult:
        settings = self.commands.settings
        words = settings.check or COUNT
        program = [w.replace("{gpus}", str(facts.gpus_expected)).replace("{node}", facts.node) for w in words]
        record = self.view.records[facts.node]
        done = await self.commands.run(
            "srun",
            f"--job-name={check_name(op)}",
            f"--reservation={reservation_name(op)}",
            f"--nodelist={facts.node}",
            *([f"--partition={record.partitions[0]}"] if record.partitions else []),
            *([f"--gres=gpu:{facts.gpus_expected}"] if facts.gpus_expected else []),
            "--nodes=1",
            "--ntasks=1",
            f"--time={max(1, round(settings.check_seconds / 60))}",
            "--quiet",
            *program,
            limit=settings.check_seconds + 30,
        )
        if done.timed_out:
            await self._end_orphans(op)
        result = judge(facts, suite, done)
        if not result.ran and not done.timed_out and done.outcome in {Outcome.NOT_DELIVERED, Outcome.UNKNOWN}:
            why = f"check of {facts.node}: the Slurm controller did not answer ({done.text}); it is checked again"
            raise TemporaryError(why, delay=2.0)  # our reservation keeps other work away meanwhile
        return result

    async def _end_orphans(self, op: str) -> None:
        """Ends check jobs of this op that a crashed worker left behind."""
        for record in await self.view.live_jobs():
            if record.job.name == check_name(op) and not record.job.phase.ended:
                job_id = record.job.native_id
                done = await self.commands.run("scancel", job_id)
                await read_back(
                    f"end the old check {job_id}",
                    done,
                    lambda job_id=job_id: self.view.job(job_id),  # type: ignore[misc]
                    lambda r: r.job.phase.ended or r.job.phase is Phase.ABSENT,
                    self.commands.limit + 30,
                )

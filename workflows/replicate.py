"""`ReplicateCheckpoints`: on a schedule, each k-th complete checkpoint goes to the sites where its job could go.

So a failover finds the newest but few steps there, and copies only what is newer. It never holds a job up, asks
nobody, and deletes nothing that it has published.
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, preflight_api, site_api
    from activities.site_api import FoundCheckpoints, Replica, Replicas, copy_order
    from fleet.copying.space import due_replicas
    from fleet.preflight import Protected
    from fleet.runbooks import VIEW, Ending, ReplicateInput, Runbook, View
    from workflows.base import StepFailed
    from workflows.targets import Targets

AT_ONCE = 4
"""Jobs side by side: each copy takes the line and the disks of both ends."""
FEW = 40
"""Jobs after which a long run may begin anew."""


@workflow.defn(name=Runbook.REPLICATE)
class ReplicateCheckpoints(Targets):
    """Started by the schedule `replicas`; one run at a time."""

    kind = Runbook.REPLICATE

    @workflow.init
    def __init__(self, inp: ReplicateInput) -> None:
        super().__init__()
        self.headline = "Checkpoints copied in advance"
        self.result = ""
        self.waiting: tuple[str, ...] = inp.jobs
        self.begun = bool(inp.jobs)
        self.done = inp.done
        self.failed = inp.failed
        self.places = asyncio.Semaphore(AT_ONCE)

    @workflow.run
    async def run(self, inp: ReplicateInput) -> Ending:
        try:
            if not self.begun:
                self.at("list the jobs", then="look what is due")
                self.waiting = (
                    await self.act(preflight_api.LIST_JOBS, api.Nothing(), summary="jobs under supervision")
                ).jobs
            await self.all_jobs()
            self.result = f"{self.done} copied" + (f", {self.failed} not, see the story" if self.failed else "")
        except StepFailed as failed:
            self.result, self.failed = f"stopped: {failed}", self.failed + 1
        self.at("done")
        self.tell(self.result)
        return Ending(text=self.result, ok=not self.failed)

    async def all_jobs(self) -> None:
        """As many side by side as there are places; begins anew where the history grows long."""
        while self.waiting:
            few, self.waiting = self.waiting[:FEW], self.waiting[FEW:]
            self.at("replicate", waits=f"{len(few)} jobs", then=f"{len(self.waiting)} more")
            await asyncio.gather(*(self.one(job) for job in few))
            if self.waiting and workflow.info().is_continue_as_new_suggested():
                self.stop_if_cancelled()
                workflow.continue_as_new(ReplicateInput(jobs=self.waiting, done=self.done, failed=self.failed))

    async def one(self, job: str) -> None:
        """What is due of one job, to every site that gets it."""
        async with self.places:
            try:
                _, subject, why = await self.job_order(job)
                if subject is None or subject.checkpoint is None:
                    self.tell(f"{job}: {why or 'it names no checkpoint root'}")
                    return
                plan = await self.act(
                    site_api.PLAN_REPLICAS, site_api.ReplicasAsk(job=subject), summary=f"where {job} is copied to"
                )
                if not plan.every or not plan.sites:
                    self.tell(f"{job}: {plan.why or 'replicate_every is 0'}")
                    return
                found = await self.find_checkpoints(plan.sites[0].source, subject.total_steps)
            except StepFailed as failed:
                self.count(job, str(failed))
                return
            for replica in plan.sites:
                await self.to_site(subject, plan, replica, found)

    async def to_site(self, job: Protected, plan: Replicas, replica: Replica, found: FoundCheckpoints) -> None:
        """The newest complete one, where it is due there."""
        site = replica.target.site
        newest = found.newest
        if newest is None or newest.step is None:
            self.tell(f"{job.job} -> {site}: {found.question or 'no complete checkpoint with a step yet'}")
            return
        try:
            there = await self.find_checkpoints(replica.target, job.total_steps)
        except StepFailed as failed:
            self.count(f"{job.job} -> {site}", str(failed))
            return
        due = due_replicas(found.complete, there.complete, plan.every)
        if newest.step not in due:
            had = f"step {there.newest.step}" if there.newest else "none"
            self.tell(f"{job.job} -> {site}: not due (newest {newest.step}, there {had})")
            return
        what = f"{job.job} step {newest.step}"
        if newest.parts is None:
            self.count(f"{what} -> {site}", newest.fixed)
            return
        order = copy_order(
            replica.cluster,
            replica.source,
            replica.target,
            newest.parts,
            owner=replica.owner,
            bandwidth=plan.bandwidth,
        )
        self.count(f"{what} -> {site}", await self.carry(order, site, what))

    def count(self, what: str, why: str) -> None:
        """One copy, or why there is none."""
        if why:
            self.failed += 1
            self.tell(f"{what}: {why}"[:500])
        else:
            self.done += 1
        self.facts["Copied"], self.facts["Not copied"] = str(self.done), str(self.failed or "")

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The run as `runbook describe` shows it."""
        return self.view_with(next=self.next, op=self.op, result=self.result)

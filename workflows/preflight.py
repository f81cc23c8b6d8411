"""`PreflightTargets`: on a schedule, could each cluster receive each protected job? Changes nothing, asks nobody.

list the jobs -> for each: what its new attempt would be, its newest proven checkpoint, every check on every cluster
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, preflight_api
    from activities.site_api import FoundCheckpoints
    from fleet.preflight import Protected, ProvenCheckpoint, Readiness
    from fleet.protected import JobOrder
    from fleet.runbooks import VIEW, Ending, PreflightInput, Runbook, View
    from workflows.base import StepFailed
    from workflows.targets import Targets

AT_ONCE = 4
"""Jobs side by side: a preflight must not be the load that a cluster breaks under."""


@workflow.defn(name=Runbook.PREFLIGHT)
class PreflightTargets(Targets):
    """Started by the schedule `preflight`, or by a person; one scheduled run at a time."""

    kind = Runbook.PREFLIGHT

    @workflow.init
    def __init__(self, inp: PreflightInput) -> None:
        super().__init__()
        self.headline = "Could each cluster receive each protected job?"
        self.result = ""
        self.ready = inp.ready
        self.unready = inp.unready
        self.waiting: tuple[str, ...] = inp.jobs

    @workflow.run
    async def run(self, inp: PreflightInput) -> Ending:
        try:
            if not self.waiting and not (inp.ready or inp.unready):
                self.at("list the jobs", then="preflight")
                self.waiting = (
                    await self.must(preflight_api.LIST_JOBS, api.Nothing(), summary="jobs under supervision")
                ).jobs
            await self.all_jobs()
        except StepFailed as failed:
            self.result = f"stopped: {failed}"
        else:
            self.result = self.summed_up()
        self.at("done")
        self.tell(self.result)
        return Ending(text=self.result, ok=not self.unready and not self.waiting)

    async def all_jobs(self) -> None:
        """A few side by side; begins anew where the history grows long."""
        while self.waiting:
            few, self.waiting = self.waiting[:AT_ONCE], self.waiting[AT_ONCE:]
            self.at("preflight", waits=", ".join(few), then=f"{len(self.waiting)} more jobs")
            for readiness in await asyncio.gather(*(self.one(job) for job in few)):
                if readiness is not None:
                    self.note(readiness)
            if self.waiting and workflow.info().is_continue_as_new_suggested():
                self.stop_if_cancelled()
                workflow.continue_as_new(PreflightInput(jobs=self.waiting, ready=self.ready, unready=self.unready))

    def note(self, found: Readiness) -> None:
        """Counts it, and says what is in the way."""
        if found.ready:
            self.ready += 1
        else:
            self.unready += 1
        for target in found.targets:
            if not target.ready:
                self.tell(f"{found.job} -> {target.cluster}: {target.text}")
        if found.note:
            self.tell(f"{found.job}: {found.note}")
        self.facts["Could move"] = str(self.ready)
        self.facts["Could not"] = str(self.unready)

    def summed_up(self) -> str:
        """The result in one line."""
        if not self.ready and not self.unready:
            return "no job is under supervision"
        said = (
            f"{self.ready} of {self.ready + self.unready} jobs could move to another cluster now or when it is empty"
        )
        return f"{said}; `runbook preflight` says what keeps the others" if self.unready else said

    # -- one job

    async def one(self, job: str) -> Readiness | None:
        """Its readiness, remembered; None where it is over meanwhile."""
        try:
            order, subject, why = await self.job_order(job)
        except StepFailed as failed:
            self.tell(f"{job}: {failed}")
            return None
        found = await self.readiness(order, subject, why)
        await self.must(
            preflight_api.SAVE_READINESS,
            preflight_api.SaveIn(readiness=found, protected=subject),
            summary=f"remember what was found of {job}",
        )
        return found

    async def readiness(self, order: JobOrder, subject: Protected | None, why: str) -> Readiness:
        """Every check on every cluster that has a template."""
        found = Readiness(
            job=order.job, cluster=order.cluster or None, native_id=order.native_id, note=why, at=self.now()
        )
        if subject is None:
            return found
        newest, note = await self.newest(subject)
        targets = await asyncio.gather(*(self.preflight_target(subject, name, newest) for name in subject.targets))
        return found.model_copy(
            update={
                "protections": subject.protections,
                "targets": tuple(targets),
                "checkpoint": self.proven(newest),
                "note": "; ".join(filter(None, (why, note))),
            }
        )

    async def newest(self, job: Protected) -> tuple[FoundCheckpoints | None, str]:
        """What its present site holds, and why nothing is known of it."""
        if job.checkpoint is None or job.cluster is None:
            return None, "it names no checkpoint root" if job.checkpoint is None else "it has no cluster yet"
        try:
            storages = await self.find_storage(job.cluster, job.checkpoint)
            if storages.source is None:
                return None, storages.why
            found = await self.find_checkpoints(storages.source, job.total_steps)
        except StepFailed as failed:
            return None, f"the newest checkpoint is not known: {failed}"
        refused = "; ".join(found.refused)
        if found.newest is None:
            return found, found.question or f"no complete checkpoint yet{f' ({refused})' if refused else ''}"
        return found, f"newer ones are not complete: {refused}" if refused else ""

    @staticmethod
    def proven(found: FoundCheckpoints | None) -> ProvenCheckpoint | None:
        """The newest complete one as people see it."""
        if found is None or found.newest is None:
            return None
        one = found.newest
        return ProvenCheckpoint(
            site=found.site,
            entry=one.entry,
            step=one.step,
            size=one.size,
            files=one.files,
            reason=one.reason,
            at=found.at,
        )

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The preflight as `runbook describe` shows it."""
        return self.view_with(next=self.next, op=self.op, result=self.result)

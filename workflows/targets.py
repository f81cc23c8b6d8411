"""Could a cluster receive a job? Asks the cluster and the storage of both sides, and puts the answers together.

Part of `PreflightTargets`, and of whoever is about to move a job. Nothing is changed.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, preflight_api, site_api
    from activities.site_api import FoundCheckpoints, Storages, copy_order
    from fleet.model import NativeJob
    from fleet.placing import PlaceWish
    from fleet.preflight import Check, CheckName, Preflight, Protected, failed, in_order, passed
    from fleet.protected import JobOrder, protected
    from workflows.base import StepFailed
    from workflows.carrying import Carrying

AT_CLUSTER = (CheckName.CREDENTIALS, CheckName.CAPACITY, CheckName.ENVIRONMENT, CheckName.RUN_AS)
AT_SITE = (CheckName.STORAGE, CheckName.SPACE, CheckName.OWNER)


class Targets(Carrying):
    """What a runbook asks before it moves a job to another cluster."""

    async def job_order(self, job: str) -> tuple[JobOrder, Protected | None, str]:
        """What its next attempt would be; None and why, where nobody knows. Raises StepFailed for a job that is over
        meanwhile."""
        order = await self.act(preflight_api.FIND_ORDER, preflight_api.OneJob(job=job), summary=f"order of {job}")
        return order, *protected(order, await self.at_home(order))

    async def at_home(self, order: JobOrder) -> NativeJob | None:
        """The job live; None where it is nowhere yet or its cluster does not answer."""
        if not order.cluster:
            return None
        try:
            if not order.native_id:
                found = await self.act(
                    api.FIND_JOB,
                    api.FindJob(cluster=order.cluster, job=order.job),
                    cluster=order.cluster,
                    summary=f"{order.job} by its name",
                )
                return found.jobs[0].job if len(found.jobs) == 1 else None
            return await self.act(
                preflight_api.READ_HOME,
                api.OnJob(cluster=order.cluster, native_id=order.native_id),
                cluster=order.cluster,
                summary=f"{order.job} at home",
            )
        except StepFailed:
            return None

    async def preflight_target(
        self, job: Protected, cluster: str, newest: FoundCheckpoints | None = None, lies: Storages | None = None
    ) -> Preflight:
        """Every check on one cluster, now. What cannot be asked is a check that did not pass, never an exception.

        `newest`: what is known of the job's checkpoints at its present site; `lies`: where they lie, and would there.
        """
        try:
            seen = await self.act(
                preflight_api.CHECK_CLUSTER,
                preflight_api.ClusterAsk(cluster=cluster, job=job),
                cluster=cluster,
                summary=f"would {cluster} take {job.job}?",
            )
        except StepFailed as down:
            why = f"{cluster} does not answer: {down}"
            seen = preflight_api.ClusterSeen(
                checks=(
                    failed(CheckName.CREDENTIALS, why, "see that its worker runs and its controller answers"),
                    *(failed(name, f"not known while {cluster} does not answer") for name in AT_CLUSTER[1:]),
                )
            )
        storages, checks = await self._storage(job, cluster, seen.owner, newest, lies)
        return Preflight(
            job=job.job,
            cluster=cluster,
            site=storages.target.site if storages.target else "",
            checks=in_order((*seen.checks, *checks)),
            owner=seen.owner,
            room_now=seen.room_now,
            at=self.now(),
        )

    async def _storage(
        self, job: Protected, cluster: str, owner: str, newest: FoundCheckpoints | None, lies: Storages | None
    ) -> tuple[Storages, tuple[Check, ...]]:
        """Where its files would lie there, and the checks of `AT_SITE`."""
        path = job.checkpoint
        if path is None:
            none = "the job names no checkpoint root: nothing is moved, a new attempt begins where its program begins"
            return Storages(), tuple(passed(name, none) for name in AT_SITE)
        try:
            storages = lies or await self.find_storage(job.cluster or cluster, path, cluster, job.wish)
            if storages.target is None:
                return storages, tuple(failed(name, storages.why) for name in AT_SITE)
            found = newest or await self.find_checkpoints(storages.source, job.total_steps)
        except StepFailed as unread:
            text = f"the newest checkpoint cannot be looked for: {unread}"
            return Storages(), tuple(failed(name, text, "see that the mover of its site runs") for name in AT_SITE)
        ask = self._site_ask(cluster, storages, found, owner)
        try:
            return storages, (
                await self.act(
                    site_api.CHECK_SITE, ask, site=storages.target.site, summary=f"storage of {cluster} for {job.job}"
                )
            ).checks
        except StepFailed as down:
            return storages, (
                failed(
                    CheckName.STORAGE,
                    f"the site {storages.target.site} does not answer: {down}",
                    f"see that `runbook worker --data {storages.target.site}` runs there",
                ),
                *(failed(name, f"not known while {storages.target.site} does not answer") for name in AT_SITE[1:]),
            )

    @staticmethod
    def _site_ask(cluster: str, storages: Storages, found: FoundCheckpoints, owner: str) -> site_api.SiteAsk:
        assert storages.target is not None  # noqa: S101 - the caller has looked
        order, because = None, ""
        if storages.source is None or storages.source.site == storages.target.site:
            because = f"its checkpoints lie on the site {storages.target.site} already: nothing is copied"
        elif found.newest is None:
            because = found.question or "it has no complete checkpoint yet"
        elif found.newest.parts is None:
            because = found.newest.fixed
        else:
            order = copy_order(cluster, storages.source, storages.target, found.newest.parts, owner=owner)
        return site_api.SiteAsk(
            cluster=cluster, storage=storages.target, owner=owner, order=order, because=because, blocked=found.blocked
        )

    async def find_storage(
        self, cluster: str, path: str, target: str = "", wish: PlaceWish | None = None
    ) -> Storages:
        """Where the job's checkpoint root on a cluster lies, and where it would on the target. Raises StepFailed."""
        own, common = (wish.roots, wish.common_root) if wish is not None else ({}, "")
        return await self.act(
            site_api.FIND_STORAGE,
            site_api.StorageAsk(cluster=cluster, path=path, target=target, common=common, own=own),
            summary=f"where {path} lies",
        )

"""What a preflight asks: what a job's new attempt would be, whether a cluster would take it, what came of it."""

import os
import pwd
import re
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities import preflight_api, site_api
from activities.api import Nothing
from activities.backends.port import ClusterBackend, RightsControl
from activities.preflight_api import ClusterAsk, ClusterSeen, Jobs
from activities.registry import implements
from activities.runtime import Owner
from fleet.errors import InvalidInputError, NotFoundError, PermanentError, TemporaryError
from fleet.identity import job_workflow_id
from fleet.orders import JobSpec
from fleet.preflight import (
    Check,
    CheckName,
    NewUser,
    Protected,
    Readiness,
    cannot_become,
    capacity,
    failed,
    named_in,
    passed,
    run_as,
)
from fleet.protected import JobOrder
from fleet.runbooks import VIEW, Runbook, SuperviseInput, View
from fleet.sites import Storage, destination, located, replica, storage_of

Saved = TypeVar("Saved", Readiness, Protected)

_ABOUT_USER = re.compile(r"\b(account|qos|user|uid|association)\b", re.IGNORECASE)
"""Words of a refusal that is about who runs the job, not what it is."""
READINESS, PROTECTED = "preflight", "protected"
"""Kinds of stored reports; their subjects are `<kind>/<job>`, for they are no reports of the job's own."""


class PreflightClusterActivities(Owner):
    """Runs on a cluster's queue."""

    @implements(preflight_api.CHECK_CLUSTER)
    async def check_cluster(self, arg: ClusterAsk) -> ClusterSeen:
        """Reads and tries; makes nothing. A cluster that does not answer now is tried again by Temporal."""
        backend = self.runtime.backend(arg.cluster)
        wish, kind = arg.job.wish, backend.kind
        try:
            await backend.probe()
        except PermanentError as error:
            unknown = (CheckName.CAPACITY, CheckName.ENVIRONMENT, CheckName.RUN_AS)
            return ClusterSeen(
                checks=(
                    failed(CheckName.CREDENTIALS, str(error)),
                    *(failed(name, f"not known while {arg.cluster} is not readable") for name in unknown),
                )
            )
        room, now = capacity(wish.request, await backend.room(), wish.scope(arg.cluster, kind))
        spec = wish.spec(arg.cluster, kind)
        refuses = await backend.try_submit(spec)
        about = [line for line in refuses if kind != "kubernetes" and _ABOUT_USER.search(line)]
        home = self.runtime.policy().clusters.get(arg.job.cluster or "")
        own = "" if home is not None and home.kind == "kubernetes" else arg.job.user
        user = _user(spec, kind, own, about)
        return ClusterSeen(
            checks=(
                await _credentials(backend),
                room,
                _environment(spec, kind, [line for line in refuses if line not in about]),
                user.check,
            ),
            room_now=now,
            owner=user.owner,
        )


async def _credentials(backend: ClusterBackend) -> Check:
    if isinstance(backend, RightsControl):
        missing = await backend.missing_rights()
        if missing.rights:
            lacks = "; ".join(f"{right}: {without}" for right, without in sorted(missing.rights.items()))
            return failed(CheckName.CREDENTIALS, f"our account lacks {lacks}", "grant them (docs/kubernetes.md)")
    return passed(CheckName.CREDENTIALS, f"{backend.cluster} answers as our account ({_me()})")


def _environment(spec: JobSpec, kind: str, refuses: list[str]) -> Check:
    if refuses:
        why = f"its trial refuses the job: {'; '.join(refuses)}"
        return failed(
            CheckName.ENVIRONMENT,
            why,
            "correct its template, or make there what it names: nodes that are down are missing, too",
        )
    if kind != "kubernetes" and not Path(spec.workdir).is_dir():
        why = f"its working directory {spec.workdir} is not there, where the cluster's worker runs"
        return failed(CheckName.ENVIRONMENT, why, "make it there, or name another one")
    return passed(
        CheckName.ENVIRONMENT, f"its trial passes; {named_in(spec.script) or 'it names no image or module'}"
    )


def _user(spec: JobSpec, kind: str, own: str, refuses: list[str]) -> NewUser:
    """Who the new attempt would be, and whether that is who the job is."""
    found = run_as(spec, kind, own, _me())
    if found.check.ok and kind == "slurm":
        why = cannot_become(found.owner, _me(), root=os.geteuid() == 0, known=_is_known(found.owner))
        found = found._replace(check=why or found.check)
    if found.check.ok and refuses:
        do = "let an account there admit the user, or name another account or QOS in the job"
        found = found._replace(check=failed(CheckName.RUN_AS, "; ".join(refuses), do))
    return found


def _is_known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class PreflightControlActivities(Owner):
    """Runs on the queue `runbooks`."""

    @property
    def _client(self) -> Client:
        return self.runtime.client

    @implements(preflight_api.LIST_JOBS)
    async def list_jobs(self, arg: Nothing) -> Jobs:
        """Those whose runbook is running, by name."""
        query = f"WorkflowType = '{Runbook.SUPERVISE}' AND ExecutionStatus = 'Running'"
        runs = self._client.list_workflows(query)
        return Jobs(jobs=tuple(sorted([run.id.removeprefix("job/") async for run in runs])))

    @implements(preflight_api.FIND_ORDER)
    async def find_order(self, arg: preflight_api.OneJob) -> JobOrder:
        """From the start of its runbook, and from what was stored."""
        policy = self.runtime.policy()
        handle = self._client.get_workflow_handle(job_workflow_id(arg.job))
        try:
            start = await self._start(handle)
            view: View = await handle.query(VIEW, result_type=View)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise NotFoundError(f"no runbook job/{arg.job} runs") from error
            raise TemporaryError(f"the runbook of {arg.job} cannot be read: {error.message}", delay=5) from error
        last = view.ledger.last if view.ledger else None
        saved = await self.runtime.store.spec_of(arg.job)
        return JobOrder(
            job=arg.job,
            cluster=last.cluster if last else start.cluster,
            native_id=last.native_id if last else start.native_id or "",
            kinds={name: one.kind for name, one in policy.clusters.items()},
            wish=start.wish or start.home,
            spec=start.spec,
            script=saved.script if saved else None,
            spec_text=saved.spec_text if saved else "",
            redacted=saved.redacted if saved else False,
            remembered=await self._remembered(arg.job),
        )

    async def _start(self, handle: WorkflowHandle[object, object]) -> SuperviseInput:
        """What its runbook was started with; a run that follows another one carries it on."""
        async for event in handle.fetch_history_events(page_size=1):
            seen = event.workflow_execution_started_event_attributes.input.payloads
            (start,) = await self._client.data_converter.decode(list(seen), [SuperviseInput])
            return SuperviseInput.model_validate(start)
        raise TemporaryError(f"{handle.id} has no history yet")

    # -- what came of it

    @implements(preflight_api.SAVE_READINESS)
    async def save(self, arg: preflight_api.SaveIn) -> Nothing:
        """Appended: the newest counts."""
        store, job = self.runtime.store, arg.readiness.job
        await store.save_report(f"{READINESS}/{job}", READINESS, arg.readiness.model_dump_json())
        if arg.protected is not None:
            await store.save_report(f"{PROTECTED}/{job}", PROTECTED, arg.protected.model_dump_json())
        return Nothing()

    @implements(preflight_api.READ_READINESS)
    async def read(self, arg: Jobs) -> preflight_api.Readinesses:
        """The newest of each; a job that was never looked at is left out."""
        found = []
        for job in arg.jobs[: preflight_api.MANY]:
            rows = await self.runtime.store.reports(f"{READINESS}/{job}", limit=1)
            found += [_read(Readiness, row.report) for row in rows]
        return preflight_api.Readinesses(found=tuple(one for one in found if one is not None))

    async def _remembered(self, job: str) -> Protected | None:
        rows = await self.runtime.store.reports(f"{PROTECTED}/{job}", limit=1)
        return _read(Protected, rows[0].report) if rows else None

    # -- storage

    @implements(site_api.FIND_STORAGE)
    async def find_storage(self, arg: site_api.StorageAsk) -> site_api.Storages:
        """By today's policy."""
        policy = self.runtime.policy()
        try:
            source = storage_of(policy, arg.cluster, arg.path)
        except (InvalidInputError, NotFoundError) as error:
            return site_api.Storages(why=str(error))
        if not arg.target:
            return site_api.Storages(source=source)
        try:
            target = destination(policy, arg.cluster, arg.path, arg.target, common=arg.common, own=arg.own)
            return site_api.Storages(source=source, target=target)
        except (InvalidInputError, NotFoundError) as error:
            return site_api.Storages(source=source, why=str(error))

    @implements(site_api.LOCATE)
    async def locate(self, arg: site_api.LocateAsk) -> site_api.Located:
        """By today's policy. The path is one of the first cluster whose storage has it."""
        policy = self.runtime.policy()
        found = located(policy, arg.path, arg.clusters, first=arg.first, own=arg.own, whole=arg.whole)
        return site_api.Located(storages=found)

    @implements(site_api.PLAN_REPLICAS)
    async def plan_replicas(self, arg: site_api.ReplicasAsk) -> site_api.Replicas:
        """The sites that the job's own site replicates to."""
        policy, job = self.runtime.policy(), arg.job
        if job.cluster is None or job.checkpoint is None:
            return site_api.Replicas(why="it has no cluster yet" if job.checkpoint else "it names no checkpoint root")
        try:
            source = storage_of(policy, job.cluster, job.checkpoint)
        except (InvalidInputError, NotFoundError) as error:
            return site_api.Replicas(why=str(error))
        sites = []
        for name in policy.sites[source.site].replicate_to:
            near = [cluster for cluster in job.targets if policy.site_of(cluster) == name]
            cluster = near[0] if near else ""
            owner = self._owner(job, cluster) if cluster else job.user
            try:
                target = self._replica(job, source, cluster) if cluster else replica(policy, source, name)
            except InvalidInputError as error:
                return site_api.Replicas(why=str(error))
            sites.append(site_api.Replica(cluster=cluster, source=source, target=target, owner=owner))
        rules = policy.copies
        return site_api.Replicas(
            every=rules.replicate_every,
            bandwidth=rules.replicate_bandwidth,
            sites=tuple(sites),
            why="" if sites else f"{source.site} replicates to no other site",
        )

    def _replica(self, job: Protected, source: Storage, cluster: str) -> Storage:
        """Where a cluster there would look for it."""
        wish = job.wish
        return destination(
            self.runtime.policy(),
            job.cluster or "",
            source.path,
            cluster,
            common=wish.common_root,
            own=wish.roots,
        )

    def _owner(self, job: Protected, cluster: str) -> str:
        """To whom the job's files belong there; the worker's own where nobody says."""
        kind = self.runtime.policy().cluster(cluster).kind
        return run_as(job.wish.spec(cluster, kind), kind, job.user, "").owner


def _read(kind: type[Saved], text: str) -> Saved | None:
    """None where an older release wrote what this one does not read."""
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        return None

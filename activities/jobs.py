"""Effects on jobs: everything that runs on a cluster's queue and concerns one job."""

import time
from collections.abc import Collection

from activities import api
from activities.registry import implements, remember, remembered
from activities.runtime import Owner, until
from fleet.errors import RefusedError, TemporaryError
from fleet.identity import fleet_name, newest_submissions
from fleet.model import BOOT_MARGIN, NativeJob, NodeFacts, NodeReceipt, NodeState, Phase, Progress
from fleet.orders import AdoptedJob, StopProof


class JobActivities(Owner):
    """One instance per worker; the backend is chosen by each input's cluster."""

    # -- reads

    @implements(api.READ_JOB)
    async def read_job(self, arg: api.OnJob) -> NativeJob:
        """Live."""
        return await self.runtime.backend(arg.cluster).job(arg.native_id)

    @implements(api.LOOK)
    async def look(self, arg: api.Look) -> api.Looked:
        """Live state, the attempt's own word on its progress, and the boots of the nodes it holds."""
        backend = self.runtime.backend(arg.cluster)
        native = await backend.job(arg.native_id)
        progress = await backend.progress(arg.native_id, arg.restarts)
        boots: dict[str, str] = {}
        if native.phase is Phase.RUNNING:
            boots = await self._boots(arg.cluster, native)
        return api.Looked(native=native, progress=progress, boots=boots)

    async def _boots(self, cluster: str, native: NativeJob) -> dict[str, str]:
        """Boots that the attempt runs under: never from a reading that is older than its start. An earlier boot of a
        node would later prove that the attempt is gone while it lives."""
        backend = self.runtime.backend(cluster)
        held = [n for n in await backend.nodes() if n.node in native.nodes]
        if any(n.read_at < (native.started_at or 0.0) + BOOT_MARGIN for n in held):
            held = [n for n in await backend.nodes(max_age=0) if n.node in native.nodes]
        return {n.node: n.boot for n in held}

    @implements(api.COUNT_FREE)
    async def count_free(self, arg: api.NeedsNodes) -> api.FreeNodes:
        """Free nodes and the job's own healthy ones, without the excluded."""
        backend = self.runtime.backend(arg.cluster)
        capacity = await backend.capacity()
        own = {
            n.node
            for n in await backend.nodes(max_age=0)
            if n.node in arg.own and n.responding and not n.drained and n.state is not NodeState.DOWN
        }
        usable = (set(capacity.free_nodes) | own) - set(arg.exclude)
        late = set(capacity.unreported) - usable - set(arg.exclude)
        if late and len(usable) < arg.wanted:
            names = ", ".join(sorted(late)[:10])
            raise TemporaryError(f"{names}: not heard of since the controller started; counted again", delay=2)
        return api.FreeNodes(free=len(usable))

    @implements(api.READ_LOG)
    async def read_log(self, arg: api.OnJob) -> api.LogTail:
        """Last lines of the job's output."""
        return api.LogTail(lines=await self.runtime.backend(arg.cluster).log_tail(arg.native_id))

    @implements(api.FIND_JOB)
    async def find_job(self, arg: api.FindJob) -> api.Found:
        """By fleet name first, then native id (on Kubernetes also NAMESPACE/NAME, without the kind), then the user's
        name; also of a job that was submitted just now. By a name, the newest submission only."""
        seen = await self.runtime.backend(arg.cluster).jobs(max_age=0)
        newest = newest_submissions(seen)
        by_name = [j for j in newest if fleet_name(j) == arg.job]
        by_id = [j for j in seen if arg.job in {j.native_id, j.native_id.partition("/")[2]}]
        by_user = [j for j in newest if j.name == arg.job]
        found = by_name or by_id or by_user
        return api.Found(jobs=tuple(api.JobOn(job=j, name=fleet_name(j)) for j in found))

    # -- taking on and giving back

    @implements(api.SUBMIT_JOB)
    async def submit(self, arg: api.Submit) -> NativeJob:
        """Idempotent by the job's fleet name."""
        native = await self.runtime.backend(arg.cluster).submit(arg.spec)
        await self.runtime.store.save_spec(
            job=arg.spec.job,
            cluster=arg.cluster,
            native_id=native.native_id,
            script=arg.spec.script,
            spec_text=arg.spec.comment,
        )
        return native

    @implements(api.ADOPT_JOB)
    async def adopt(self, arg: api.Adopt) -> AdoptedJob:
        """Holds it and saves its script; the script stays out of Temporal's history."""
        adopted = await self.runtime.backend(arg.cluster).adopt(arg.native_id)
        await self.runtime.store.save_spec(
            job=arg.job,
            cluster=arg.cluster,
            native_id=arg.native_id,
            script=adopted.script,
            spec_text=adopted.spec_text,
        )
        return AdoptedJob(job=adopted.job)

    @implements(api.HOLD_JOB)
    async def hold(self, arg: api.OnJob) -> NativeJob:
        """Holds a new attempt; running ranks do not notice."""
        return await self.runtime.backend(arg.cluster).hold(arg.native_id)

    @implements(api.GIVE_BACK_JOB)
    async def give_back(self, arg: api.OnJob) -> NativeJob:
        """A person's order; works under a freeze too, for it only undoes what is ours."""
        return await self.runtime.backend(arg.cluster).give_back(arg.native_id)

    @implements(api.CANCEL_JOB)
    async def cancel(self, arg: api.OnJob) -> NativeJob:
        """Ends it for good."""
        return await self.runtime.backend(arg.cluster).cancel(arg.native_id)

    # -- one recovery

    @implements(api.REQUEST_CHECKPOINT)
    async def request_checkpoint(self, arg: api.Checkpoint) -> api.CheckpointOut:
        """Sends the signal and waits for a newer save; a second try first looks whether the first one worked."""
        backend = self.runtime.backend(arg.cluster)
        before = remembered()
        known: int | None = before[0] if before else None
        if not before:
            native = await backend.job(arg.native_id)
            if native.phase is not Phase.RUNNING or native.restarts != arg.restarts:
                return api.CheckpointOut(saved=arg.newer_than, asked=False, why=f"the attempt is {native.phase}")
            known = (await backend.progress(arg.native_id, arg.restarts)).saved
            remember(known)
            await backend.request_checkpoint(arg.native_id, arg.signal)
        seen = Progress()

        async def saved() -> bool:
            nonlocal seen
            seen = await backend.progress(arg.native_id, arg.restarts)
            return seen.saved is not None and (known is None or seen.saved > known)

        if await until(saved, seconds=arg.grace, every=0.2, slowest=1.0):
            return api.CheckpointOut(saved=seen.saved, asked=True)
        return api.CheckpointOut(
            saved=seen.saved, asked=True, why=f"none came in {arg.grace:.0f} s; the last one is step {seen.saved}"
        )

    @implements(api.STOP_JOB)
    async def stop(self, arg: api.Stop) -> api.StopOut:
        """Stops with grace and waits until the job is held in the queue with nothing completing."""
        backend = self.runtime.backend(arg.cluster)
        kept = remembered()
        before = await backend.job(arg.native_id)
        ours = before.phase in {Phase.RUNNING, Phase.STOPPING} and before.restarts == arg.restarts
        if kept:
            nodes, ordered = tuple(kept[0]), bool(kept[1])
        else:
            nodes = before.nodes
            ordered = ours and await self._all_answer(arg.cluster, nodes)
            remember(list(nodes), ordered)
        await backend.stop(arg.native_id, arg.restarts)
        now = before

        async def held() -> bool:
            nonlocal now
            now = await backend.job(arg.native_id)
            if now.phase.ended:
                raise RefusedError(f"job {arg.native_id} ended by itself meanwhile: {now.phase} ({now.reason})")
            return now.phase is Phase.PENDING and now.held

        if not await until(held, seconds=arg.timeout, every=0.2, slowest=2.0):
            raise TemporaryError(f"job {arg.native_id} is still {now.phase} ({now.reason})", delay=5)
        ordered = ordered and await self._all_answer(arg.cluster, nodes)
        return api.StopOut(job=now, ordered=ordered, ended_at=time.time())

    async def _all_answer(self, cluster: str, nodes: tuple[str, ...]) -> bool:
        backend = self.runtime.backend(cluster)
        facts = [await backend.node(n) for n in nodes]
        return bool(facts) and all(_answers(f) for f in facts)

    @implements(api.PROVE_STOPPED)
    async def prove_stopped(self, arg: api.Prove) -> StopProof:
        """Collects receipts until every node has one or the patience is over."""
        backend = self.runtime.backend(arg.cluster)
        receipts: dict[str, NodeReceipt] = {}
        unproven: dict[str, str] = {}
        settling: dict[str, float] = {}

        async def proven() -> bool:
            left = {n: b for n, b in arg.query.boots.items() if n not in receipts}
            proof = await backend.prove_stopped(arg.query.model_copy(update={"boots": left}))
            receipts.update({r.node: r for r in proof.receipts})
            unproven.clear()
            unproven.update(proof.unproven)
            settling.clear()
            settling.update(proof.settling)
            return not unproven or await self._all_down(arg.cluster, unproven)

        await until(proven, seconds=arg.patience, every=0.3, slowest=2.0)
        missing = {n: unproven.get(n, "no answer yet") for n in arg.query.boots if n not in receipts}
        waiting = {n: s for n, s in settling.items() if n in missing}
        return StopProof(receipts=tuple(receipts.values()), unproven=missing, settling=waiting)

    async def _all_down(self, cluster: str, nodes: Collection[str]) -> bool:
        """The cluster has given them up: no daemon there will prove anything, so nobody waits for one."""
        facts = await self.runtime.backend(cluster).nodes()
        return set(nodes) <= {n.node for n in facts if n.state is NodeState.DOWN and not n.responding}

    @implements(api.START_ATTEMPT)
    async def start_attempt(self, arg: api.Start) -> NativeJob:
        """No receipt for every old node, no attempt."""
        missing = set(arg.old_nodes) - {r.node for r in arg.receipt.nodes}
        if missing:
            raise RefusedError(f"no fence receipt for {', '.join(sorted(missing))}: the next attempt is not started")
        return await self.runtime.backend(arg.cluster).start_attempt(arg.order)

    @implements(api.WAIT_RUNNING)
    async def wait_running(self, arg: api.WaitRunning) -> NativeJob:
        """Waits for nodes, then holds the attempt again."""
        backend = self.runtime.backend(arg.cluster)
        now: NativeJob | None = None

        async def running() -> bool:
            nonlocal now
            now = await backend.job(arg.native_id)
            if now.phase.ended:
                raise RefusedError(f"job {arg.native_id} ended before it ran: {now.phase} ({now.reason})")
            if now.phase is Phase.RUNNING and now.restarts < arg.restarts:
                raise RefusedError(f"the cluster shows job {arg.native_id} at restart {now.restarts} again")
            if now.phase is Phase.PENDING and now.held and now.restarts >= arg.restarts:
                raise RefusedError(f"job {arg.native_id} is held again ({now.reason}); somebody stopped it")
            return now.phase is Phase.RUNNING and now.restarts >= arg.restarts and bool(now.nodes)

        if not await until(running, seconds=arg.timeout, every=0.25, slowest=3.0):
            raise RefusedError(
                f"job {arg.native_id} got no nodes in {arg.timeout:.0f} s ({now.reason if now else 'not seen'})"
            )
        settled = await backend.settle_attempt(arg.native_id)
        if settled.restarts < arg.restarts:
            raise RefusedError(f"the cluster shows job {arg.native_id} at restart {settled.restarts} again")
        return settled

    @implements(api.WAIT_STEP)
    async def wait_step(self, arg: api.WaitStep) -> api.StepSeen:
        """A step above the resumed one, at most the total; a lost attempt or bad resume is told, not waited for."""
        backend = self.runtime.backend(arg.cluster)
        seen: api.StepSeen | None = None

        async def stepped() -> bool:
            nonlocal seen
            native = await backend.job(arg.native_id)
            progress = await backend.progress(arg.native_id, arg.restarts)
            seen = judge_step(native, progress, arg)
            return seen is not None

        if await until(stepped, seconds=arg.timeout, every=0.25, slowest=2.0) and seen is not None:
            return seen
        progress = await backend.progress(arg.native_id, arg.restarts)
        return api.StepSeen(progress=progress, ok=False, why=f"no new step in {arg.timeout:.0f} s")


def judge_step(native: NativeJob, progress: Progress, arg: api.WaitStep) -> api.StepSeen | None:
    """What one look at a new attempt means; None = wait on (DESIGN.md section 3, "step seen")."""
    if progress.resumed_from is None and progress.step is not None and (arg.resumed or 0) > 0:
        why = f"it began from step 0 although step {arg.resumed} was saved: a bad resume"
        return api.StepSeen(progress=progress, ok=False, why=why)
    if progress.step is not None and arg.total is not None and progress.step > arg.total:
        why = f"it says step {progress.step} of {arg.total}: a bad resume"
        return api.StepSeen(progress=progress, ok=False, why=why)
    if progress.done or (progress.step is not None and progress.step > (progress.resumed_from or 0)):
        return api.StepSeen(progress=progress, ok=True)
    if native.phase is not Phase.RUNNING or native.restarts != arg.restarts:
        why = f"the attempt was lost before its first step ({native.phase}: {native.reason})"
        return api.StepSeen(progress=progress, ok=False, why=why)
    return None


def _answers(facts: NodeFacts) -> bool:
    return facts.responding and facts.state not in {NodeState.DOWN, NodeState.UNKNOWN}

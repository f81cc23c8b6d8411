"""`PlaceJob`: finds a cluster for a job. Choose, preflight, submit, wait until it runs; else the next; else a person.

A job that does not get its nodes in time is held where it waits, so that it cannot start there any more, and only
then submitted elsewhere. What is held is cancelled once the job runs in another cluster, and let go where its cluster
is tried again. So at no moment can two clusters start it.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api, place_api
    from fleet.model import NativeJob, Phase
    from fleet.orders import StopQuery
    from fleet.people import Choice
    from fleet.placement import Placement
    from fleet.runbooks import VIEW, PlaceEnd, PlaceInput, PlaceResult, Runbook, View
    from fleet.units import duration_text
    from workflows import attributes
    from workflows.base import Abandoned, StepFailed
    from workflows.stocking import Stocking

END_PATIENCE = 120.0
"""Seconds that a cancelled job, which never ran, may take to show as ended."""
PROVE_PATIENCE = 20.0
"""Seconds that one asking for receipts lasts."""
SUBMITS = 3
"""How often a job is submitted that its controller forgets before it runs."""


@workflow.defn(name=Runbook.PLACE)
class PlaceJob(Stocking):
    """Child of the job's runbook; `<n>` is the generation of the attempt to come."""

    kind = Runbook.PLACE

    @workflow.init
    def __init__(self, inp: PlaceInput) -> None:
        super().__init__()
        self.inp = inp
        self.wish = inp.wish
        self.held: dict[str, NativeJob] = {}
        """Cluster -> the job that waits there, held by us."""
        self.native: NativeJob | None = None
        self.result = ""
        self.headline = f"{self.wish.job}: a cluster for {self.wish.request.nodes} nodes"

    @workflow.run
    async def run(self, inp: PlaceInput) -> PlaceResult:
        try:
            while True:
                ended = await self.try_next()
                if ended is not None:
                    return ended
        except Abandoned as given_up:
            return self.end(PlaceEnd.LEFT, f"ended by {given_up.choice} at '{given_up.step}': {given_up}")
        except StepFailed as failed:
            return self.end(PlaceEnd.LEFT, str(failed))
        except BaseException as error:
            if is_cancelled_exception(error):
                self.leaving = True
                self.result = f"cancelled at '{self.step}'; {await self.state_seen()}"
                self.tell(self.result)
            raise

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The placement as `runbook describe` shows it."""
        return self.view_with(
            next=self.next,
            op=self.op,
            result=self.result,
            placement=self.placement,
        )

    async def try_next(self) -> PlaceResult | None:
        """The best cluster that was not tried yet. None: try the next one."""
        placement = await self.choose()
        if placement.choice is None:
            return await self.ask_where(placement)
        self.cluster, self.native = placement.choice, None
        workflow.upsert_search_attributes([attributes.CLUSTER.value_set(self.cluster)])
        if not await self.preflight() or not await self.bring() or not await self.submit():
            return None
        if await self.see_running() or not await self.withdraw():
            await self.cancel_held()
            return self.end(PlaceEnd.PLACED, f"placed on {self.cluster}: {placement.why}")
        return None

    # -- ends

    def end(self, how: PlaceEnd, text: str) -> PlaceResult:
        """The result, with what is left where described in it."""
        full = text if how is PlaceEnd.PLACED else f"{text}. {self.state_now()}"
        self.result = full
        self.tell(full)
        self.at(how)
        placed = how is PlaceEnd.PLACED
        return PlaceResult(
            ended=how,
            text=full,
            cluster=self.cluster if placed else "",
            spec=self.spec() if placed else None,
            native=self.native if placed else None,
        )

    def state_now(self) -> str:
        """What of the job is where, as far as this runbook knows."""
        places = {c: f"{c}/{native.native_id} stays held in its queue" for c, native in self.held.items()}
        if self.native is not None and self.cluster not in places:
            places[self.cluster] = f"{self.cluster}/{self.native.native_id} was {self.native.phase} when last seen"
        if not places:
            return "nothing of the job is in any cluster"
        return f"{'; '.join(places.values())}; `runbook release CLUSTER/ID` lets a held one go"

    async def state_seen(self) -> str:
        """The same after a cancel, which may have met a submit or a start."""
        if self.native is None and self.cluster and self.cluster not in self.held:
            return f"{self.state_now()}; look whether {self.cluster} has taken a submit of {self.wish.job}"
        if self.native is not None:
            try:
                self.native = await self.act(
                    api.READ_JOB,
                    api.OnJob(cluster=self.cluster, native_id=self.native.native_id),
                    cluster=self.cluster,
                    summary="what is left",
                )
            except (StepFailed, ActivityError) as failed:
                return f"{self.state_now()} ({self.cluster} could not be read: {failed})"
        return self.state_now()

    # -- the steps

    async def preflight(self) -> bool:
        """The cluster's own trial; False: it would not take the job."""
        if self.cluster in self.held:
            return True  # it has taken it before
        self.at("preflight", waits=f"a trial on {self.cluster}", then="submit")
        try:
            trial = await self.act(
                place_api.TRY_SUBMIT,
                api.Submit(cluster=self.cluster, spec=self.spec()),
                cluster=self.cluster,
                summary=f"would {self.cluster} take it?",
            )
        except StepFailed as failed:
            return self.go_on(f"the trial did not succeed: {failed}")
        return not trial.refuses or self.go_on(f"its trial refuses the job: {'; '.join(trial.refuses)}")

    async def submit(self) -> bool:
        """Idempotent by the job's name; one that we held there waits on. False: refused, and nothing is there."""
        self.at("submit", waits=f"{self.cluster} to take it", then="running")
        try:
            self.native = await self.must(
                api.SUBMIT_JOB,
                api.Submit(cluster=self.cluster, spec=self.spec()),
                cluster=self.cluster,
                summary=f"submit {self.wish.job} to {self.cluster}",
            )
        except StepFailed as failed:
            return self.go_on(f"it refuses the submit: {failed}")
        if self.held.pop(self.cluster, None) is not None:
            self.native = await self.must(
                api.GIVE_BACK_JOB, self.here(), cluster=self.cluster, summary="let it wait on for its nodes"
            )
        self.tell(f"submitted to {self.cluster} as {self.native.native_id}")
        return True

    def here(self) -> api.OnJob:
        """The job in the present cluster."""
        return api.OnJob(cluster=self.cluster, native_id=self.native.native_id if self.native else "")

    async def see_running(self) -> bool:
        """Until the deadline. True: it has its nodes, or it is over already, which the job's runbook judges."""
        limit = self.wish.start_within or (await self.policy(self.cluster)).place_timeout
        self.at("running", waits=f"nodes on {self.cluster}, at most {duration_text(limit)}", then="done")
        until = self.now() + limit
        for _ in range(SUBMITS):
            seen = await self.must(
                place_api.WAIT_PLACED,
                place_api.WaitPlaced(cluster=self.cluster, native_id=self.here().native_id, until=until),
                cluster=self.cluster,
                summary=f"wait until it runs on {self.cluster}",
            )
            self.native = seen.native or self.native
            if seen.native is None or seen.native.phase is not Phase.ABSENT:
                break
            self.tell(f"{self.cluster} lost the job before it ran; submitted again by its name")
            if not await self.submit():
                raise StepFailed("submit", self.tried[self.cluster], refused=True)
        else:
            raise StepFailed("submit", f"{self.cluster} loses the job again and again", refused=True)
        return seen.native is not None and self.runs(seen.native)

    @staticmethod
    def runs(native: NativeJob) -> bool:
        """It has nodes or is over. A failed launch is the job's runbook's matter, too."""
        return native.phase.ended or native.phase in {Phase.RUNNING, Phase.STOPPING} or native.launch_failed

    async def withdraw(self) -> bool:
        """Holds it where it waits. False: it has begun to run meanwhile."""
        self.at("withdraw", waits=f"{self.cluster} to hold it", then="the next cluster")
        native = self.native = await self.must(
            api.READ_JOB, self.here(), cluster=self.cluster, summary="does it still wait?"
        )
        if self.runs(native):
            return False
        if native.held:
            raise StepFailed("withdraw", f"somebody holds it in {self.cluster} ({native.reason})", refused=True)
        reason = native.reason or "no reason given"
        try:
            await self.must(
                api.HOLD_JOB, self.here(), cluster=self.cluster, summary="hold it, so that it cannot start"
            )
        except StepFailed as failed:
            self.tell(f"not held: {failed}")
        native = self.native = await self.must(
            api.READ_JOB, self.here(), cluster=self.cluster, summary="is it held, and not running?"
        )
        if self.runs(native):
            return False
        if not native.held and not native.nodes:
            raise StepFailed("withdraw", f"{self.cluster} does not hold the job ({native.reason})", refused=True)
        self.go_on(f"not running in time ({reason}); held there, so that it cannot start")
        self.held[self.cluster] = native
        if native.nodes:  # pods are scheduled one by one, and no hold takes a node back
            await self.cancel(self.cluster, f"ranks of it have {', '.join(native.nodes)}, and the others none")
        self.native = None
        return True

    # -- what was held

    async def cancel_held(self) -> None:
        """It runs here, so it may not wait anywhere else."""
        for cluster in sorted(self.held):
            await self.cancel(cluster, f"it runs on {self.cluster}")

    async def cancel(self, cluster: str, why: str) -> None:
        """Ends a job that is held and proves that nothing of it runs."""
        native = self.held[cluster]
        self.at("cancel", waits=f"the end of {cluster}/{native.native_id}")
        boots = {}
        for node in native.nodes:
            facts = await self.must(api.READ_NODE, api.OnNode(cluster=cluster, node=node), cluster=cluster)
            boots[node] = facts.boot
        while True:
            left = await self.not_gone(cluster, native, boots)
            if not left:
                break
            outcome = await self.ask(
                title=f"{self.wish.job} is not proven gone from {cluster}",
                why=f"It was held there ({why}). {left}",
                steps=("retry: cancel it and look again", "take_over: leave it as it is"),
                options=(Choice.RETRY, Choice.TAKE_OVER),
                default=Choice.TAKE_OVER,
                cluster=cluster,
            )
            if outcome.choice is not Choice.RETRY:
                raise Abandoned("cancel", outcome.choice, left)
        del self.held[cluster]
        self.spent[cluster] = f"job {native.native_id} was cancelled there, and a name is given once ({why})"
        self.tell(f"{cluster}/{native.native_id} is cancelled; it never ran")

    async def not_gone(self, cluster: str, native: NativeJob, boots: dict[str, str]) -> str:
        """Cancels it while it waits held. Why it is not gone; empty once it is."""
        on = api.OnJob(cluster=cluster, native_id=native.native_id)
        seen = await self.must(api.READ_JOB, on, cluster=cluster, summary="is it still held?")
        if seen.phase in {Phase.RUNNING, Phase.STOPPING}:
            return f"It runs on {', '.join(seen.nodes)}: somebody let it go."
        if not seen.phase.ended:
            await self.must(api.CANCEL_JOB, on, cluster=cluster, summary="cancel it, it never ran")
            waited = await self.must(
                place_api.WAIT_PLACED,
                place_api.WaitPlaced(cluster=cluster, native_id=native.native_id, until=self.now() + END_PATIENCE),
                cluster=cluster,
                summary="wait for its end",
            )
            seen = waited.native or seen
        if not seen.phase.ended or set(seen.nodes) - set(boots):
            return f"It is {seen.phase} ({seen.reason or 'no reason'}) on {', '.join(seen.nodes) or 'no node'}."
        if not boots:
            return ""
        query = StopQuery(
            native_id=native.native_id, restarts=native.restarts, boots=boots, ordered=True, since=self.now()
        )
        proof = await self.must(
            api.PROVE_STOPPED,
            api.Prove(cluster=cluster, query=query, patience=PROVE_PATIENCE),
            cluster=cluster,
            summary="prove that no rank is left",
        )
        return "; ".join(f"{node}: {left}" for node, left in sorted(proof.unproven.items()))

    # -- people

    async def ask_where(self, placement: Placement) -> PlaceResult | None:
        """Nowhere to go: a person decides, with the reason of each cluster in hand."""
        if not self.inp.ask:
            return await self.give_up(f"not placed: {placement.why}")
        outcome = await self.ask(
            title=f"No cluster takes {self.wish.job}",
            why=placement.why,
            steps=(
                "retry: ask every cluster again; where it is held it waits on for its nodes",
                "abort: cancel what waits, and end without a cluster",
            ),
            options=(Choice.RETRY, Choice.ABORT),
            default=Choice.ABORT,
            evidence=tuple(f"{c.cluster}: {c.why}" for c in placement.candidates),
        )
        if outcome.choice is Choice.RETRY:
            self.tried.clear()
            return None
        return await self.give_up(f"not placed ({outcome.choice} by {outcome.by}): {placement.why}")

    async def give_up(self, why: str) -> PlaceResult:
        """Nothing of it waits anywhere any more."""
        self.native = None
        for cluster in sorted(self.held):
            await self.cancel(cluster, "no cluster takes the job")
        return self.end(PlaceEnd.NOT_PLACED, why)

"""`FailoverAcrossClusters`: the next attempt in another cluster, from a checkpoint that was copied and proven there.

choose -> preflight -> stop -> fence -> copy -> prove -> submit -> running -> first new step

Up to the stop nothing is touched. From there to the submit the job stays held in the queue that it leaves, which is
safe and is said; what was copied stays and is gone on from. After the submit the only way is forward. The object in
the cluster that the job leaves is ended by the job's own runbook, as soon as that cluster can be asked.
"""

from collections.abc import Iterable

from temporalio import workflow
from temporalio.common import SearchAttributePair
from temporalio.exceptions import ChildWorkflowError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api, site_api
    from activities.site_api import FoundCheckpoint, FoundCheckpoints, Storages, copy_order
    from fleet.copying.manifest import Parts
    from fleet.ladder import CLUSTER_IS_GONE
    from fleet.lease import ClusterLoss, hung_before, lease_receipt
    from fleet.ledger import Stage
    from fleet.model import NodeReceipt, ReceiptGrade
    from fleet.people import Choice
    from fleet.placing import PlaceWish
    from fleet.plans import transfer_steps
    from fleet.preflight import Protected
    from fleet.runbooks import (
        VIEW,
        PlaceEnd,
        PlaceInput,
        PlaceResult,
        RecoveryEnd,
        RecoveryInput,
        RecoveryResult,
        Runbook,
        View,
    )
    from fleet.sites import Storage
    from fleet.stock import Held
    from fleet.transfer import moved_wish
    from fleet.units import size_text
    from workflows import attributes
    from workflows.base import ASK_BRIEFLY, StepFailed
    from workflows.carrying import PROOFS
    from workflows.lease import lapse
    from workflows.recovery import Recovery
    from workflows.stocking import Stocking
    from workflows.targets import Targets


@workflow.defn(name=Runbook.TRANSFER)
class FailoverAcrossClusters(Recovery, Stocking, Targets):
    """Its cluster cannot hold the job any more, or a person wants it elsewhere."""

    kind = Runbook.TRANSFER

    @workflow.init
    def __init__(self, inp: RecoveryInput) -> None:
        super().__init__()
        self.take(inp)
        assert inp.wish is not None  # noqa: S101 - the job's runbook starts no move without it
        self.wish: PlaceWish = inp.wish
        self.headline = f"{inp.job}: to another cluster"
        self.tried[inp.cluster] = "the job leaves it"
        self.storages = Storages()
        self.source: Storage | None = None
        """Where the newest checkpoint was found: in the cluster that the job leaves, else what was replicated."""
        self.found: FoundCheckpoint | None = None
        self.owner = ""
        """To whom the copied files are given: the user that the new attempt runs as."""
        self.left = False
        """There is a receipt for every node of the old attempt."""
        self.unasked = False

    @workflow.run
    async def run(self, inp: RecoveryInput) -> RecoveryResult:
        return await self.recover()

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The move as `runbook describe` shows it."""
        return self.recovery_view().model_copy(update={"placement": self.placement})

    async def steps(self) -> RecoveryResult:
        """One target after the other; what was done for the old attempt is done once."""
        if await self.came_back():
            return self.end(RecoveryEnd.NOT_NEEDED, f"{self.inp.cluster} answers again")
        early = await self.get_permission()
        while early is None and self.now_in == self.inp.cluster:
            early = await self.choose_target() or await self.leave_old()
            early = early or await self.bring_state() or await self.settle()
        return early or await self.see_new_step()

    def plan(self) -> tuple[str, ...]:
        """As `Recovery.plan`."""
        return transfer_steps(
            self.inp.old, self.inp.generation, self.inp.native.tokens.checkpoint_signal, self.inp.to
        )

    # -- is it needed, and where to

    async def came_back(self) -> bool:
        """The move is because its cluster does not answer, and now it does."""
        return self.inp.verdict.rule == CLUSTER_IS_GONE and await self.answers()

    async def answers(self) -> bool:
        """Whether the cluster that the job leaves can be asked; what it says of the job is known then."""
        try:
            native = await self.act(
                api.READ_JOB,
                api.OnJob(cluster=self.inp.cluster, native_id=self.native.native_id),
                cluster=self.inp.cluster,
                budget=ASK_BRIEFLY,
                summary=f"does {self.inp.cluster} answer?",
            )
        except StepFailed as failed:
            self.tell(f"{self.inp.cluster} does not answer: {failed}"[:300])
            return False
        self.native = native
        return True

    async def choose_target(self) -> RecoveryResult | None:
        """The best cluster that passes its preflight, and the checkpoint that would go there."""
        while True:
            placement = await self.choose()
            if placement.choice is None:
                return self.end(RecoveryEnd.STUCK, f"no other cluster takes it: {placement.why}")
            self.cluster = placement.choice
            workflow.upsert_search_attributes([attributes.CLUSTER.value_set(self.cluster)])
            early, fits = await self.look_ahead()
            if early is not None or fits:
                return early

    async def look_ahead(self) -> tuple[RecoveryResult | None, bool]:
        """The newest complete checkpoint, then every check of the target. A copy above the limit is a person's."""
        self.at("preflight", waits=f"what {self.cluster} and its storage say", then="stop")
        self.storages = await self.find_storage(self.inp.cluster, self.root(), self.cluster, self.wish)
        if self.storages.target is None or self.storages.source is None:
            return None, self.go_on(self.storages.why)
        found = await self.newest()
        if found.newest is None or found.newest.parts is None:
            why = found.question or (found.newest.fixed if found.newest else "") or "no checkpoint is complete"
            return self.end(RecoveryEnd.STUCK, f"nothing to go on from: {why}{_rejected(found)}"), False
        self.found = found.newest
        job = Protected(
            job=self.inp.job,
            cluster=self.inp.cluster,
            wish=moved_wish(self.wish, self.cluster, self.inp.epoch, self.storages.target.path),
            user=self.native.user,
            root=self.root(),
            total_steps=self.native.tokens.total_steps,
        )
        lies = self.storages.model_copy(update={"source": self.source})
        seen = await self.preflight_target(job, self.cluster, found, lies)
        self.facts[f"Preflight of {self.cluster}"] = seen.text
        self.owner = seen.owner
        if not seen.ready:
            return None, self.go_on(f"preflight: {seen.text}")
        return await self.large_copy(found.newest), True

    async def large_copy(self, found: FoundCheckpoint) -> RecoveryResult | None:
        """Above the policy's size nobody copies without being asked; who approved the move knew no size."""
        limit = self.inp.decision.across_size
        if self.shared or found.size <= limit:
            return None
        allowed = await self.allowed(
            "approve",
            title=f"Copy {size_text(found.size)} for {self.inp.job} to {self.cluster}",
            why=f"Its newest complete checkpoint, step {found.step}, is above across_size ({size_text(limit)}).",
            steps=self.plan(),
            evidence=self.inp.verdict.shown,
            requester=self.inp.requester,
            cluster=self.inp.cluster,
        )
        return None if allowed else self.end(RecoveryEnd.DENIED, "the copy was not allowed")

    async def look_for_stock(self, streams: int) -> None:
        """As `Stocking.look_for_stock`, of its checkpoint: what lies in the cluster that it leaves counts, too."""
        open_to = tuple(
            c for c, kind in sorted(self.kinds.items()) if c not in self.tried and not self.wish.stays_away(c, kind)
        )
        if streams and open_to:
            total, here, own = self.inp.native.tokens.total_steps, (self.inp.cluster,), self.wish.roots
            if own:
                own = {**own, self.inp.cluster: self.root()}
            self.checkpoint = await self.find_checkpoint(
                self.wish.common_root or self.root(), total, open_to, streams, here, own
            )
            self.facts["Checkpoint"] = self.checkpoint.weighed.text or "none found"

    @staticmethod
    def counted(found: FoundCheckpoints | str) -> Held:
        """As `Stocking.counted`; one that does not answer rules nobody out: what others hold is gone on from."""
        seen = site_api.held(found)
        return Held(there=False) if seen.unknown else seen

    def root(self) -> str:
        """The checkpoint root where the job is; no move is decided for a job that names none."""
        return self.inp.native.tokens.checkpoint or "/"

    @property
    def shared(self) -> bool:
        """Both clusters see the same storage."""
        source, target = self.source, self.storages.target
        return source is not None and target is not None and source.site == target.site

    async def newest(self) -> FoundCheckpoints:
        """What the source holds; where its own worker does not answer, or finds nothing there (a storage that is not
        mounted looks empty), what lies at the target already. Raises StepFailed where neither tells of one."""
        total = self.inp.native.tokens.total_steps
        self.source = self.storages.source
        silent: StepFailed | None = None
        try:
            here = await self.find_checkpoints(self.source, total)
            if here.there or self.shared:
                return here
            self.tell(f"the storage of {self.inp.cluster} has no {self.root()}")
        except StepFailed as failed:
            silent = failed
            self.tell(f"the storage of {self.inp.cluster} does not answer ({failed})"[:300])
        found = await self.find_checkpoints(self.storages.target, total)
        if found.newest is None:
            if silent is not None:
                raise silent
            return here
        self.source = self.storages.target
        self.tell(f"going on from what was replicated to {self.cluster}")
        return found

    # -- leaving

    async def leave_old(self) -> RecoveryResult | None:
        """Stop and fence; a cluster that cannot be asked is left on a named person's word."""
        if self.left:
            return None
        self.at("stop", waits=f"{self.inp.cluster} to answer", then="fence")
        if not await self.answers():
            return await self.attest()
        await self.save_checkpoint()
        while True:
            early = await self.stop()
            if early is not None:
                return early
            if await self.fence():
                break
        self.left = True
        return None

    async def attest(self) -> RecoveryResult | None:
        """Nobody can ask the old cluster. Its ranks are gone because their launchers' lease has lapsed, else because
        a person has seen it and says so by name."""
        nodes = self.inp.old.nodes
        why_no_lease = await self.lapse()
        if not why_no_lease:
            return None
        start = self.now()
        outcome = await self.ask(
            title=f"{self.inp.cluster} does not answer: are the ranks of {self.inp.job} gone?",
            why=(
                f"Attempt {self.inp.old.generation} ran on {', '.join(nodes)}. Before it starts in {self.cluster} "
                "somebody must have seen that none of its ranks runs or can write any more: power off, network cut, "
                "storage fenced. Two writers spoil the newest checkpoint. "
                f"A lease proves nothing here: {why_no_lease}"
            ),
            steps=(
                "attest: I have seen that every rank on these nodes is gone",
                "take_over: leave the job as it is",
            ),
            options=(Choice.ATTEST, Choice.TAKE_OVER),
            default=Choice.TAKE_OVER,
            evidence=self.inp.verdict.shown,
            cluster=self.inp.cluster,
        )
        self.stage(Stage.PERSON, start, "attestation")
        if outcome.choice is not Choice.ATTEST:
            return self.end(RecoveryEnd.DENIED, "nobody attests that the old attempt is gone")
        if await self.answers():
            self.tell(f"{self.inp.cluster} answers again: it is asked instead")
            return await self.leave_old()
        self._leave_unasked(
            NodeReceipt(node=node, grade=ReceiptGrade.ATTESTED, detail=f"attested by {outcome.by}", at=self.now())
            for node in nodes
        )
        self.tell(f"{outcome.by} attests that the ranks on {', '.join(nodes)} are gone")
        return None

    def _leave_unasked(self, receipts: Iterable[NodeReceipt]) -> None:
        """The old attempt is gone, and its cluster did not say so itself."""
        self.receipts |= {receipt.node: receipt for receipt in receipts}
        self.stopped_at, self.left, self.unasked = self.now(), True, True

    async def lapse(self) -> str:
        """Takes the lease of the old attempt's launchers back and waits until it has lapsed. Why that proves nothing;
        empty with a receipt, the weakest there is."""
        if self.inp.verdict.rule != CLUSTER_IS_GONE:
            return "its cluster was not known to be lost"
        old, checks = self.inp.old, self.inp.native.tokens.generation_check
        lost_at = self.inp.detected_at
        loss = ClusterLoss(reachable=False, answered_at=lost_at, hung=hung_before(old, lost_at))
        self.at("fence", waits="the lease of its launchers to lapse, if they hold one", then="copy")
        start = self.now()
        try:
            lapsed = await lapse(self, old, checks_generation=checks, loss=loss, why=self.inp.verdict.title)
        except StepFailed as failed:
            return str(failed)
        verdict = lease_receipt(old, lapsed, checks_generation=checks, loss=loss)
        if verdict.receipt is None:
            return "; ".join(verdict.why_not)
        self._leave_unasked(verdict.receipt.nodes)
        self.stage(Stage.FENCE, start, "lease")
        self.tell(f"the lease of attempt {old.generation} has lapsed on {', '.join(old.nodes)}")
        return ""

    # -- bringing its state

    async def bring_state(self) -> RecoveryResult | None:
        """The newest complete checkpoint, looked for once more, is at the target and was proven there. What stands in
        its way is a person's: the job stays held, and what was copied stays to go on from."""
        target = self.storages.target
        assert target is not None  # noqa: S101 - the target was chosen with it
        start = self.now()
        while why := await self._brought(target):
            outcome = await self.ask(
                title=f"The checkpoint of {self.inp.job} could not be brought to {self.cluster}",
                why=f"{why}. {self.state_now()}. Nothing of it runs, and nothing was started in {self.cluster}.",
                steps=(
                    "retry: look for the newest complete checkpoint again and go on copying where it ended",
                    "abort: end here and leave the job as described",
                ),
                options=(Choice.RETRY, Choice.ABORT, Choice.TAKE_OVER),
                default=Choice.ABORT,
                evidence=self.inp.verdict.shown,
                cluster=self.inp.cluster,
            )
            if outcome.choice is not Choice.RETRY:
                return self.end(RecoveryEnd.STUCK, f"no proven checkpoint at {self.cluster}: {why}")
        assert self.found is not None  # noqa: S101 - it was brought
        self.progress = self.progress.model_copy(update={"saved": self.found.step})
        self.stage(Stage.COPY, start, f"step {self.found.step}, {size_text(self.found.size)}")
        self.tell(f"step {self.found.step} is proven in {target.path}")
        return None

    async def _brought(self, target: Storage) -> str:
        """Why it is not there, in words; empty when it is. A candidate that vanished makes room for the next."""
        total = self.inp.native.tokens.total_steps
        tried, why = "", ""
        try:
            for _ in range(PROOFS):
                found = await self.newest()
                if found.newest is None or found.newest.parts is None:
                    return f"no checkpoint is complete any more{_rejected(found)}"
                if found.newest.entry == tried:
                    break
                self.found, tried = found.newest, found.newest.entry
                why = await self._bring_copy(found.newest.parts, target)
                if not why:
                    return await self.not_offered(target, self.found.step, total)
                self.tell(f"not copied: {why}")
        except StepFailed as failed:
            return str(failed)
        return why

    async def _bring_copy(self, parts: Parts, target: Storage) -> str:
        assert self.source is not None  # noqa: S101 - the target was chosen with it
        assert self.found is not None  # noqa: S101 - so was the checkpoint
        if self.shared:
            return ""
        order = copy_order(self.cluster, self.source, target, parts, owner=self.owner)
        self.at("copy", waits=f"{size_text(self.found.size)} to {target.site}", then="submit")
        return await self.carry(order, target.site, f"step {self.found.step}")

    # -- arriving

    async def settle(self) -> RecoveryResult | None:
        """Submits it there and waits until it runs. None without a new cluster: the next one is tried."""
        target = self.storages.target
        assert target is not None  # noqa: S101 - the target was chosen with it
        start = self.now()
        wish = moved_wish(self.wish, self.cluster, self.inp.epoch, target.path)
        result = await self.place(wish)
        if result is None or result.ended is PlaceEnd.NOT_PLACED:
            self.go_on(f"not placed there: {result.text if result else 'its placement was ended'}")
            return None
        if result.native is None:
            return self.end(RecoveryEnd.STUCK, result.text)
        self.native, self.now_in, self.running_here = result.native, self.cluster, True
        self.stage(Stage.REQUEUE, start)
        start = self.now()
        try:
            adopted = await self.must(
                api.ADOPT_JOB,
                api.Adopt(cluster=self.cluster, native_id=self.native.native_id, job=self.inp.job),
                cluster=self.cluster,
                summary="hold it there, too",
            )
            self.native = adopted.job
        except StepFailed as failed:
            self.tell(f"it is not held in {self.cluster}: {failed}")
        self.stage(Stage.START, start)
        self.tell(f"running on {self.cluster}: {', '.join(self.native.nodes)}")
        return None

    async def place(self, wish: PlaceWish) -> PlaceResult | None:
        """Lets a child submit it to the one cluster and wait for its nodes; None where somebody ended that."""
        name = f"{workflow.info().workflow_id}/place/{len(self.tried)}"
        self.at("submit", waits=f"`{name}`", then="first new step")
        try:
            result: PlaceResult = await workflow.execute_child_workflow(
                Runbook.PLACE,
                PlaceInput(wish=wish, generation=self.inp.generation, ask=False),
                id=name,
                result_type=PlaceResult,
                static_summary=f"{self.inp.job} in {self.cluster}"[:180],
                search_attributes=workflow.info().typed_search_attributes.updated(
                    SearchAttributePair(attributes.CLUSTER, self.cluster),
                    SearchAttributePair(attributes.STEP, "starting"),
                ),
            )
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            raise StepFailed("submit", f"`{name}` was ended; it says what is left where", refused=True) from error
        return result

    # -- what is left

    def state_now(self) -> str:
        """As `Recovery.state_now`."""
        if self.running_here:
            return f"attempt {self.inp.generation} was started in {self.now_in} and runs on there"
        if self.unasked:
            return f"nothing of it was started elsewhere; in {self.inp.cluster} it is as that cluster shows it"
        return super().state_now()

    async def state_seen(self) -> str:
        """As `Recovery.state_seen`, of the cluster where it is."""
        if self.now_in == self.inp.cluster:
            return await super().state_seen()
        return f"{self.state_now()} (native id {self.native.native_id})"


def _rejected(found: FoundCheckpoints) -> str:
    return f" ({'; '.join(found.refused[:3])})" if found.refused else ""

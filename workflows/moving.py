"""What `SuperviseJob` does for a job that leaves its cluster: notice that the cluster is lost, prepare the move,
follow the job to where it is now, and end what it left behind."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, transfer_api
    from fleet.decision import Action, Decision, DecisionInput
    from fleet.faults.evidence import Culprit, FaultClass, Verdict
    from fleet.ladder import CLUSTER_IS_GONE
    from fleet.ledger import Rung
    from fleet.model import NativeJob, Phase
    from fleet.placing import ClusterWords
    from fleet.runbooks import FINGERPRINT_MEMO, LEFT_MEMO, Order, RecoveryInput
    from fleet.transfer import Former
    from fleet.units import duration_text
    from workflows import attributes
    from workflows.base import ASK_BRIEFLY, StepFailed
    from workflows.placed import Placed

RETIRE_EVERY = 600.0
"""Seconds between two askings of such a cluster while its watch says nothing."""


class Moving(Placed):
    """A job that may go from cluster to cluster."""

    silent_since: float | None = None
    """Since when its cluster does not answer."""
    news: NativeJob | None
    left_at: int | None
    """Restart count at which a person or a refusal left the job as it is: not taken up again by itself."""
    ended_at: int | None
    """Restart count at which a recovery found the job ended already."""
    lost_told: bool = False
    """What a lost cluster means was decided; not again until it has answered."""
    retire_at: float = 0.0
    """When what the job left behind is to be asked for again."""
    successor: NativeJob | None = None
    """Its newest submit, in another cluster, as a watch there tells it."""

    # -- before

    async def transfer_input(self, inp: RecoveryInput, want: Order | None) -> RecoveryInput:
        """The job as it was submitted for any cluster, else from the script that was saved at its adoption."""
        home = self.inp.home
        if home is None:
            found = await self.must(
                transfer_api.FIND_WISH,
                transfer_api.WishIn(cluster=self.inp.cluster, job=self.inp.job, native=inp.native),
                summary="the script that was saved at its adoption",
            )
            home = found.wish
        epoch = self.inp.epoch + 1
        self.inp = self.inp.model_copy(update={"home": home, "epoch": epoch})
        to = want.to if want else ""
        if to:
            home = home.model_copy(update={"clusters": {to: home.clusters.get(to, ClusterWords())}})
        return inp.model_copy(update={"wish": home, "epoch": epoch, "to": to})

    def answered(self) -> None:
        """Its cluster answers."""
        self.silent_since, self.lost_told = None, False

    async def lost_cluster(self) -> tuple[Verdict, Decision] | None:
        """Its cluster has not answered for longer than the policy allows, and it could run elsewhere: what then.
        Asked when a look has failed. None: look again later."""
        began = self.silent_since = self.silent_since or self.now()
        silent = self.now() - began
        native, last = self.native, self.ledger.last
        if (
            native is None
            or last is None
            or self.lost_told
            or silent <= (await self.policy(self.inp.cluster)).cluster_lost_after
        ):
            return None
        verdict = Verdict(
            fault=FaultClass.HARDWARE,
            culprit=Culprit(job=self.inp.job),
            rule=CLUSTER_IS_GONE,
            title=f"{self.inp.cluster} has not answered for {duration_text(round(silent))}",
            first_rung="none",
            confidence=1.0,
        )
        decision = await self.must(
            api.DECIDE,
            DecisionInput(
                cluster=self.inp.cluster,
                verdict=verdict,
                ledger=self.ledger,
                at=self.now(),
                nodes_wanted=native.nodes_wanted,
                moves=self.moves(None),
                opted_in=native.tokens.transfer,
            ),
            summary="decide what a lost cluster means",
        )
        self.lost_told = True
        if decision.action is not Action.FAILOVER_ACROSS_CLUSTERS:
            self.tell(f"{verdict.title}; not moved: {decision.why}")
            return None
        self.verdict = verdict
        self.facts["Verdict"] = verdict.title
        self.facts["Decision"] = f"{decision.action}: {decision.why}"
        self.tell(f"{verdict.title}: {decision.why}")
        return verdict, decision

    # -- after

    def moved(self, native: NativeJob) -> None:
        """It is the native object of another cluster from here on; the one that it left is ended when it can be."""
        left = Former(
            cluster=self.inp.cluster, native_id=self.native_id, fingerprint=self.inp.fingerprint or "unknown"
        )
        self.inp = self.inp.model_copy(
            update={
                "cluster": native.cluster,
                "native_id": native.native_id,
                "fingerprint": native.fingerprint,
                "epoch": max(self.inp.epoch, native.tokens.epoch),
                "former": (*self.inp.former, left),
            }
        )
        self.native, self.adopted, self.successor, self.retire_at = native, native.adopted, None, 0.0
        self.left_at = self.ended_at = None
        self.answered()
        self.headline = f"Job {self.inp.job} on {self.inp.cluster}"
        workflow.upsert_memo(self.memo())
        workflow.upsert_search_attributes([attributes.CLUSTER.value_set(native.cluster)])

    def memo(self) -> dict[str, object]:
        """Which native object is the job, and which ones are not any more."""
        known: dict[str, object] = {FINGERPRINT_MEMO: self.inp.fingerprint}
        if self.inp.former:
            known[LEFT_MEMO] = [one.fingerprint for one in self.inp.former]
        return known

    def is_former(self, native: NativeJob) -> bool:
        """An object that the job has left behind; it is looked at at once, for its cluster answers again."""
        if any((one.cluster, one.fingerprint) == (native.cluster, native.fingerprint) for one in self.inp.former):
            self.retire_at = 0.0
            return True
        return native.cluster != self.inp.cluster and self._was_attempt(native)

    def _was_attempt(self, native: NativeJob) -> bool:
        return any((a.cluster, a.native_id) == (native.cluster, native.native_id) for a in self.ledger.attempts)

    def is_successor(self, native: NativeJob) -> bool:
        """Its newest submit. The move that made it tells of it at its end; was that one ended by a person, the job is
        followed all the same, for only a proven stop lets it be submitted."""
        newest = native.cluster != self.inp.cluster and native.key == self.inp.job
        if newest and self.inp.epoch and native.tokens.epoch == self.inp.epoch:
            self.successor = native
            return True
        return False

    def follow_successor(self) -> None:
        """A move was ended by a person after its submit."""
        native, last = self.successor, self.ledger.last
        self.successor = None
        if native is None or last is None or native.phase.ended or not native.nodes:
            return
        if native.cluster == self.inp.cluster or self._was_attempt(native):
            return
        self.tell(f"it runs in {native.cluster} ({native.native_id}), where it was moved to")
        if last.ended_at is None:
            self.ledger = self.ledger.with_last(ended_at=self.now())
        self.moved(native)
        self.append(Rung.ACROSS_CLUSTERS, native, {}, ordered_at=native.submitted_at)
        self.news = native

    def woken(self) -> bool:
        """There is something to do for a move that is over."""
        return self.successor is not None or (bool(self.inp.former) and self.retire_at == 0.0)

    async def leave_nothing(self) -> None:
        """The job is over; what it left in a cluster that does not answer could start there anew when it is back."""
        while self.inp.former:
            await self.retire()
            if self.inp.former:
                places = ", ".join(sorted({one.cluster for one in self.inp.former}))
                self.at("retire", waits=f"{places} to answer, to end there what the job has left")
                self.stop_if_cancelled()
                try:
                    await workflow.wait_condition(
                        lambda: self.retire_at == 0.0,
                        timeout=timedelta(seconds=RETIRE_EVERY),
                        timeout_summary="then ask it again",
                    )
                except TimeoutError:
                    continue

    async def retire(self) -> None:
        """Ends what the job left behind in clusters that answer, so that nobody starts it there again."""
        if not self.inp.former or self.now() < self.retire_at:
            return
        self.retire_at = self.now() + RETIRE_EVERY
        left = []
        for one in self.inp.former:
            if not await self._is_over(one):
                left.append(one)
        self.inp = self.inp.model_copy(update={"former": tuple(left)})
        self.facts["Left behind"] = "; ".join(f"{one.cluster}/{one.native_id}" for one in left)

    async def _is_over(self, one: Former) -> bool:
        on = api.OnJob(cluster=one.cluster, native_id=one.native_id)
        try:
            native = await self.act(
                api.READ_JOB, on, cluster=one.cluster, budget=ASK_BRIEFLY, summary=f"what is left in {one.cluster}"
            )
            if native.phase is Phase.ABSENT or native.fingerprint != one.fingerprint or native.phase.ended:
                self.tell(f"{one.cluster}/{one.native_id}, which it left, is over")
                return True
            seen = await self.act(
                api.CANCEL_JOB, on, cluster=one.cluster, budget=ASK_BRIEFLY, summary=f"end it in {one.cluster}"
            )
        except StepFailed as failed:
            self.tell(f"{one.cluster}/{one.native_id}, which it left, is not ended yet: {failed}"[:400])
            return False
        self.tell(f"{one.cluster}/{one.native_id}, which it left, was ended ({seen.phase})")
        return seen.phase.ended or seen.phase is Phase.ABSENT

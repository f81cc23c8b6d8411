"""`SuperviseJob`: the whole life of one job. It watches, judges, decides, and lets child runbooks act.

The ledger is the job's story: one row for each attempt that we ordered or observed. Signals only put things in the
inbox; the main loop is the one place that decides.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from fleet.decision import Action, Decision
    from fleet.faults.evidence import Evidence, FaultClass, Verdict
    from fleet.ladder import PREEMPTED
    from fleet.ledger import Rung
    from fleet.model import NativeJob, Phase
    from fleet.people import Choice
    from fleet.plans import MOVES
    from fleet.runbooks import (
        REFUSED,
        VIEW,
        Accepted,
        Ending,
        EvidenceBatch,
        Order,
        ReceiptNote,
        RecoveryEnd,
        RecoveryResult,
        Runbook,
        Signal,
        SuperviseInput,
        Update,
        View,
    )
    from workflows.attempts import LOOK_EVERY
    from workflows.base import Abandoned, StepFailed
    from workflows.moving import Moving

REMEMBERED = 500
"""Evidence keys remembered against repeats, also over continue-as-new."""
LOOK_AFTER_SUBMIT = timedelta(seconds=5)
"""A controller that dies within 1 to 2 s loses a submit that it had acknowledged (measured): look once more then."""


@workflow.defn(name=Runbook.SUPERVISE)
class SuperviseJob(Moving):
    """One per job; its workflow id is the job's lock."""

    kind = Runbook.SUPERVISE

    @workflow.init
    def __init__(self, inp: SuperviseInput) -> None:
        super().__init__(inp)
        self.inbox: list[Evidence] = []
        self.seen: dict[str, None] = dict.fromkeys(inp.seen)
        self.orders: list[Order] = []
        self.unsure = False
        self.news: NativeJob | None = None
        self.result = ""
        self.reached = False
        self.ended_at: int | None = None
        self.left_at: int | None = inp.left_at

    @workflow.run
    async def run(self, inp: SuperviseInput) -> Ending:
        try:
            await self.take_on()
            while not self.result:
                await self.next_event()
                await self.follow_safely()
                await self.retire()
                await self.begin_anew()
            await self.leave_nothing()
            await self.close()
        except BaseException as error:
            if is_cancelled_exception(error):
                self.leaving = True
                await self.leave(f"cancelled at '{self.step}'")
            raise
        return Ending(text=self.result, ok=self.reached)

    # -- signals, updates, query

    @workflow.signal(name=Signal.CHANGED)
    def changed(self, native: NativeJob) -> None:
        """The watch saw the job move."""
        if self.is_former(native) or self.is_successor(native):
            return
        if self.inp.fingerprint and native.fingerprint != self.inp.fingerprint:
            self.tell(
                f"another job {native.native_id} on {native.cluster} claims the name {self.inp.job}; left alone"
            )
            return
        self.news = native

    @workflow.signal(name=Signal.EVIDENCE)
    async def evidence(self, batch: EvidenceBatch) -> None:
        """Something was seen on a node of the job, or about the job. A recovery under way hears of it too."""
        new = tuple({e.key: e for e in batch.evidence if e.key not in self.seen}.values())
        self.seen |= {e.key: None for e in new}
        self.inbox += new
        while len(self.seen) > REMEMBERED:
            self.seen.pop(next(iter(self.seen)))
        if new and self.child is not None:
            try:
                await self.child.signal(Signal.EVIDENCE, EvidenceBatch(evidence=new))
            except FailureError as late:
                self.tell(f"the recovery could not be told of more evidence: {late}")

    @workflow.signal(name=Signal.RECEIPT)
    async def receipt(self, note: ReceiptNote) -> None:
        """Passed on to the recovery that waits for it; one that has just ended needs it no more."""
        if self.child is not None:
            try:
                await self.child.signal(Signal.RECEIPT, note)
            except FailureError as late:
                self.tell(f"a receipt of {note.receipt.node} came late: {late}")

    @workflow.update(name=Update.ORDER, description="A person orders a restart or a failover.")
    def order(self, order: Order) -> Accepted:
        """Taken into the loop; budgets and modes still hold."""
        self.orders.append(order)
        self.tell(f"{order.by} ordered {order.want}: {order.reason}")
        return Accepted(text=f"{order.want} of {self.inp.job} ordered; follow it with `runbook watch {self.inp.job}`")

    @order.validator
    def check_order(self, order: Order) -> None:
        """One recovery of one job at a time."""
        if self.result:
            raise ApplicationError(f"{self.inp.job} is over: {self.result}", type=REFUSED)
        if self.child is not None:
            raise ApplicationError(f"{self.child.id} is under way already; cancel it first", type=REFUSED)
        if self.orders:
            raise ApplicationError("another order waits already", type=REFUSED)
        if order.valid_until is not None and self.now() > order.valid_until:
            raise ApplicationError("the order is too old: no worker took it in time; give it again", type=REFUSED)
        if order.want not in MOVES:
            raise ApplicationError(f"cannot order {order.want}", type=REFUSED)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The job as `runbook describe` and `report` show it."""
        return self.view_with(
            next=self.next,
            verdict=self.verdict,
            ledger=self.ledger,
            op=self.op,
            result=self.result,
            moves=self.moves(None),
        )

    # -- the loop

    async def take_on(self) -> None:
        """Submits or finds the job; it is held from its first running moment on."""
        if self.native is None:
            self.at("take on", waits="the cluster")
            if self.inp.wish is None:
                await self.find_job()
                self.unsure = self.inp.spec is not None
            else:
                self.result = await self.place(self.inp.wish)
        if self.result:
            return
        told, self.news = self.news, self.native
        here = told is not None and told.fingerprint == self.inp.fingerprint  # not where it was tried before
        if told is not None and here and told.phase.ended:  # told while it was read, so it comes after what was read
            await self.follow_safely()
            self.news = self.news or told
        self.watching()

    def watching(self) -> None:
        """The quiet state."""
        last = self.ledger.last
        where = f"attempt {last.generation} on {', '.join(last.nodes)}" if last else "its first start"
        self.at("watching", waits=where)

    async def begin_anew(self) -> None:
        """Continue-as-new when the history grows long. Nothing that waits to be handled is left behind."""
        if self.result or not workflow.info().is_continue_as_new_suggested():
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.stop_if_cancelled()
        if self.inbox or self.orders or self.news is not None or self.successor is not None:
            return
        workflow.continue_as_new(
            self.carry_over().model_copy(update={"seen": tuple(self.seen), "left_at": self.left_at}),
            memo=self.memo(),  # what was noted after the start is not carried by itself
        )

    async def next_event(self) -> None:
        """Returns when something is to be looked at; looks by itself after a while without signals."""
        self.stop_if_cancelled()
        try:
            await workflow.wait_condition(
                lambda: self.news is not None or bool(self.inbox) or bool(self.orders) or self.woken(),
                timeout=LOOK_AFTER_SUBMIT if self.unsure else self.look_after(),
                timeout_summary="then look by ourselves",
            )
        except TimeoutError:
            self.unsure = False
            self.news = await self.look_if_possible()
            if self.news is None:
                await self.move_if_lost()

    async def follow_safely(self) -> None:
        """What cannot be done now is said and looked at again; the runbook itself never fails over it."""
        try:
            await self.follow()
        except (StepFailed, Abandoned) as failed:
            self.tell(f"not done: {failed}")
            await workflow.sleep(LOOK_EVERY, summary="before the job is looked at again")

    async def follow(self) -> None:
        """Decides what the newest native state, the evidence and the orders mean."""
        self.follow_successor()
        if self.news is not None:
            self.native, self.news = self.news, None
            await self.follow_native(self.native)
        if self.result:
            return
        if self.orders:
            order = self.orders.pop(0)
            await self.recover((), want=order)
        elif self.inbox:
            batch, self.inbox = self.mine(self.inbox), []
            if batch:
                await self.recover(batch)

    async def follow_native(self, native: NativeJob) -> None:
        """One branch for each phase."""
        last = self.ledger.last
        if native.phase is Phase.RUNNING:
            if not native.nodes:
                return  # a controller that has just started; without its nodes an attempt could never be fenced
            if last is None or native.restarts > last.restarts or set(native.nodes) != set(last.nodes):
                await self.begin_attempt(native)
                self.watching()
            elif native.restarts != self.left_at and await self.stalled():
                await self.recover(self.stall_evidence())
            return
        native = self.native = await self.look()  # a signal may be older than what we did since
        last = self.ledger.last
        if native.phase is Phase.PENDING:
            unseen = last is not None and last.ended_at is None and native.restarts > last.restarts
            if unseen and native.restarts != self.left_at:
                self.tell(f"the scheduler put it back into the queue by itself ({native.reason})")
                await self.recover(())
            elif last is None and native.held and native.launch_failed:
                await self.launch_failed(native)
            elif last is not None and last.ended_at is None and native.restarts == last.restarts and native.held:
                await self.forgotten()
        elif native.phase is Phase.ABSENT:
            await self.missing()
        elif native.phase.ended:
            await self.ended(native)

    async def missing(self) -> None:
        """Not in the controller: unknown. Never taken for done, never for failed. A submit of ours that was lost
        before it ever ran is made again; its key makes sure that there is one."""
        if self.inp.spec is not None and self.ledger.last is None:
            self.tell(f"the controller lost job {self.native_id} before it ran; submitted again by its key")
            self.inp = self.inp.model_copy(update={"fingerprint": ""})
            await self.find_job()
            self.news, self.unsure = self.native, True
            return
        outcome = await self.ask(
            title=f"{self.inp.job} is not in the controller of {self.inp.cluster}",
            why=f"Job {self.native_id} was purged or lost. Nobody can tell from the cluster how it ended.",
            steps=("retry: look again", "abort: stop supervising it"),
            options=(Choice.RETRY, Choice.ABORT),
            default=Choice.ABORT,
            cluster=self.inp.cluster,
        )
        if outcome.choice is not Choice.RETRY:
            self.result = "end unknown: the controller does not know it any more"

    async def launch_failed(self, native: NativeJob) -> None:
        """Its first launch failed, and the scheduler holds it. Its script never ran, so no rank is anywhere, unless
        it was started before and nobody looked: then a person decides."""
        if native.restarts != 1:
            await self.ask_what_next(
                await self.judge((), None), f"it was started {native.restarts} times before it was seen"
            )
            return
        await self.adopt()
        self.append(Rung.FIRST, native.model_copy(update={"restarts": 0}), {}, ordered_at=native.submitted_at)
        self.tell(f"its launch failed ({native.reason})")
        await self.recover(())

    async def forgotten(self) -> None:
        """A start that was seen and is unknown to the cluster: its controller died and lost it. Whether its ranks
        live nobody can tell here, and a new one would have the same generation."""
        last = self.ledger.last
        nodes = ", ".join(last.nodes) if last else ""
        outcome = await self.ask(
            title=f"{self.inp.cluster} forgot that {self.inp.job} runs",
            why=(
                f"Attempt {self.ledger.generation} was seen running on {nodes}, and job {self.native_id} is shown as "
                f"waiting and held. Look whether ranks are left there, then `runbook release {self.inp.job}`."
            ),
            steps=("retry: look again", "abort: stop supervising it; it stays held"),
            options=(Choice.RETRY, Choice.ABORT),
            default=Choice.ABORT,
            cluster=self.inp.cluster,
        )
        if outcome.choice is Choice.RETRY:
            self.news = await self.look()
        else:
            self.result = f"left to a person: {await self.describe_left_state()}"

    async def ended(self, native: NativeJob) -> None:
        """Done, stopped by a person, or ended badly. Progress decides, not the scheduler's word."""
        total, step = native.tokens.total_steps, self.progress.step
        finished = self.progress.done or (total is not None and step is not None and step >= total)
        if native.phase is Phase.SUCCEEDED and (finished or total is None):
            self.result, self.reached = "done", True
        elif finished:
            self.result = f"done (its last step was seen; the scheduler says {native.phase}: {native.reason})"
            self.reached = True
        elif native.phase is Phase.SUCCEEDED:
            self.result = (
                f"ended with code 0 at step {step} of {total}; a completed job is not revived, its owner decides"
            )
        elif native.phase is Phase.CANCELLED:
            self.result = "cancelled in the cluster by a person; left as it is"
        elif native.phase is Phase.TIMED_OUT:
            self.result = f"ended by its time limit at step {step}; that is no fault"
        elif native.restarts == self.left_at:
            self.result = f"ended ({native.phase}) at step {step} and not restarted: {self.facts.get('Left as', '')}"
        else:
            self.tell(f"ended badly: {native.phase} ({native.reason}), exit code {native.exit_code}")
            await self.recover(())

    # -- judgement and recovery

    async def recover(self, evidence: tuple[Evidence, ...], want: Order | None = None) -> None:
        """Gathers, judges, decides, and runs the step. Ends in a new attempt, in an end, or in a person."""
        self.taken_up = self.now()
        detected = min((e.seen_at for e in evidence), default=self.taken_up)
        try:
            self.native = await self.look()
            verdict = await self.judge(evidence, want)
            decision = await self.decide(verdict, want)
        except Abandoned as given_up:
            self.tell(f"no decision: {given_up}")
            return
        if verdict.rule in PREEMPTED and self.waits_held():
            await self.let_go_on(verdict, decision, detected)
        elif decision.action in MOVES:
            result = await self.run_recovery(verdict, decision, detected, want)
            await self.book(result, verdict, decision)
        elif decision.action is Action.REFUSE:
            await self.refuse(verdict, decision.why)
        elif decision.action is Action.NOTHING and self.waits_held():
            await self.let_go_on(verdict, decision, detected)
        elif decision.action is Action.NOTHING:
            self.tell(f"recorded, nothing to do: {decision.why}")
        else:
            await self.ask_what_next(verdict, decision.why)
        if not self.result:
            self.watching()

    async def refuse(self, verdict: Verdict, why: str) -> None:
        """A user fault is never moved. A job that still runs runs on; one that ended is over, with its cause."""
        self.tell(f"not moved: {why}")
        if self.native is not None and self.native.phase.ended:
            self.result = f"user fault, not restarted: {verdict.title if verdict.fault is FaultClass.USER else why}"
        elif self.waits_held():
            self.leave_as(await self.describe_left_state())

    async def let_go_on(self, verdict: Verdict, decision: Decision, detected: float) -> None:
        """Somebody's own requeue, or a preemption: it starts again once the old attempt is proven gone."""
        policy = await self.policy(self.inp.cluster)
        again = decision.model_copy(
            update={
                "action": Action.RESTART_IN_PLACE,
                "mode": str(policy.mode("restart_in_place")),
                "why": f"it was put back into the queue; it goes on after a receipt ({verdict.title})",
                "delay": 0.0,
                "charge": 0,
            }
        )
        result = await self.run_recovery(verdict, again, detected, None)
        await self.book(result, verdict, again)

    async def ask_what_next(self, verdict: Verdict, why: str) -> None:
        """A budget is spent, or nothing fits: a person decides."""
        outcome = await self.ask(
            title=f"{self.inp.job} needs a decision",
            why=f"{verdict.title}. {why}",
            steps=("retry: one more failover", "abort: stop supervising and leave it as it is"),
            options=(Choice.RETRY, Choice.ABORT, Choice.TAKE_OVER),
            default=Choice.TAKE_OVER,
            evidence=verdict.shown,
            cluster=self.inp.cluster,
        )
        if outcome.choice is Choice.RETRY:
            decision = (await self.decide(verdict, None)).model_copy(
                update={"action": Action.FAILOVER_IN_CLUSTER, "mode": "auto", "why": f"{outcome.by} said retry"}
            )
            result = await self.run_recovery(verdict, decision, self.now(), None)
            await self.book(result, verdict, decision)
            return
        await self.leave(f"{outcome.by} chose {outcome.choice}")
        self.result = f"left to a person: {why}"

    async def book(self, result: RecoveryResult, verdict: Verdict, decision: Decision) -> None:
        """Writes the recovery into the ledger and follows up what did not end well."""
        self.book_recovery(result, verdict, decision)
        await self.save_report("incident")
        if result.ended is RecoveryEnd.STUCK:
            now = self.native = await self.look()
            last = self.ledger.last
            if now.phase.ended or (now.phase is Phase.RUNNING and last is not None and now.restarts > last.restarts):
                self.news = now  # it is stuck no more: it ended, or somebody started it
            else:
                await self.ask_about_stuck(result, verdict, decision)
            return
        if result.ended is RecoveryEnd.TRAINING:
            self.news = await self.look()
        elif result.ended is RecoveryEnd.JOB_ENDED:
            self.news = await self.look()
            if self.news.phase in {Phase.FAILED, Phase.NODE_LOST} and self.ended_at == self.news.restarts:
                self.result = f"ended ({self.news.phase}) and cannot be restarted: {result.text}"
            elif self.news.phase is Phase.RUNNING:
                self.leave_as(result.text)
            self.ended_at = self.news.restarts
        elif result.ended is RecoveryEnd.NO_STEP and not self.result:
            self.news = await self.look()
            if self.news.phase is Phase.RUNNING:
                more, self.inbox = self.mine(self.inbox), []
                await self.recover((*more, *self.no_step_evidence(result)))
        elif result.ended in {RecoveryEnd.DENIED, RecoveryEnd.GIVEN_UP, RecoveryEnd.CANCELLED}:
            self.leave_as(result.text)

    async def move_if_lost(self) -> None:
        """Its cluster is lost: the job goes elsewhere, or stays until that one answers if a person said no."""
        lost = await self.lost_cluster()
        if lost is None:
            return
        verdict, decision = lost
        self.taken_up = self.now()
        result = await self.run_recovery(verdict, decision, self.silent_since or self.taken_up, None)
        self.book_recovery(result, verdict, decision)
        await self.save_report("incident")
        if result.cluster:
            self.news = await self.look()
        elif result.ended is RecoveryEnd.NOT_NEEDED:
            self.answered()
        else:
            self.leave_as(result.text)
        self.watching()

    def leave_as(self, text: str) -> None:
        """Stays as it is until an order, new evidence or a new start."""
        self.left_at = self.native.restarts if self.native else None
        self.facts["Left as"] = text
        told = any(line.endswith(text) for line in self.story)  # the recovery's own line
        self.tell("left as it is" if told else f"left as it is: {text}")

    async def ask_about_stuck(self, result: RecoveryResult, verdict: Verdict, decision: Decision) -> None:
        """A recovery that cannot go on is a person's matter, with its state in the question."""
        outcome = await self.ask(
            title=f"The recovery of {self.inp.job} is stuck",
            why=result.text,
            steps=("retry: the same recovery once more", "take_over: leave it as it is"),
            options=(Choice.RETRY, Choice.TAKE_OVER),
            default=Choice.TAKE_OVER,
            evidence=verdict.shown,
            cluster=self.inp.cluster,
        )
        if outcome.choice is Choice.RETRY:
            self.native = await self.look()
            await self.book(await self.run_recovery(verdict, decision, self.now(), None), verdict, decision)
            return
        self.leave_as(result.text)

    async def close(self) -> None:
        """The last report, and what stays of our marks."""
        self.at("over")
        self.tell(self.result)
        self.ledger = self.ledger.model_copy(update={"done_at": self.now()})
        try:
            await self.save_report("job")
        except StepFailed as failed:
            self.tell(f"the report could not be stored: {failed}")
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def leave(self, why: str) -> None:
        """Says what state is left behind. Nothing destructive happens here."""
        state = await self.describe_left_state()
        self.tell(f"{why}; {state}")
        self.facts["Left as"] = state
        self.at("left")
        try:
            await self.save_report("job")
        except StepFailed as failed:
            self.tell(f"the report could not be stored: {failed}")

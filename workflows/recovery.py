"""The order of safe steps that brings a job from one attempt to the next, in place or elsewhere in its cluster.

checkpoint -> stop with grace -> fence (a receipt for every old node) -> start -> running -> first new step

Up to the stop everything may be left as it is. Between the stop and the start the job stays held in the queue, which
is safe and is said. After the start the only way is forward.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.faults.evidence import Evidence
    from fleet.ledger import Span, Stage
    from fleet.model import Phase, Progress
    from fleet.orders import StartOrder
    from fleet.plans import recovery_steps
    from fleet.runbooks import (
        EvidenceBatch,
        RecoveryEnd,
        RecoveryInput,
        RecoveryResult,
        Signal,
        View,
    )
    from workflows.base import Abandoned, StepFailed
    from workflows.fencing import Fencing


class Recovery(Fencing):
    """Shared by `RestartInPlace` and `FailoverInCluster`: they differ in which nodes the next attempt may use."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress()
        self.running_here = False
        self.result = ""
        self.trouble: list[Evidence] = []
        self.ordered_here = True
        self.over_here = False

    def take(self, inp: RecoveryInput) -> None:
        """Keeps the input and names the page."""
        self.inp = inp
        self.now_in = inp.cluster
        self.native = inp.native
        self.ordered_here = inp.native.phase is not Phase.PENDING  # else the scheduler took the nodes back already
        self.progress = inp.old.progress
        self.headline = f"{inp.job}: {'restart in place' if inp.in_place else 'failover in the cluster'}"
        self.facts |= {
            "Verdict": f"{inp.verdict.title} ({inp.verdict.rule})",
            "Decision": inp.decision.why,
            "Tries left": str(inp.decision.budget_left),
            "Op": f"`{inp.op}`",
        }

    # -- signals

    @workflow.signal(name=Signal.EVIDENCE)
    def evidence(self, batch: EvidenceBatch) -> None:
        """Passed on by the job's runbook: trouble on a node of the new attempt ends the wait for its first step."""
        self.trouble += batch.evidence

    # -- the frame

    async def steps(self) -> RecoveryResult:
        """The order of safe steps."""
        early = (
            await self.get_permission()
            or await self.save_checkpoint()
            or await self.move()
            or await self.see_running()
        )
        return early or await self.see_new_step()

    async def recover(self) -> RecoveryResult:
        """Runs the steps; whatever ends them early is turned into a described, safe state."""
        try:
            result = await self.steps()
        except Abandoned as given_up:
            result = self.end(RecoveryEnd.GIVEN_UP, f"ended by {given_up.choice} at '{given_up.step}': {given_up}")
        except StepFailed as failed:
            result = self.end(RecoveryEnd.STUCK, str(failed))
        except BaseException as error:
            if is_cancelled_exception(error):
                self.leaving = True
                self.result = f"cancelled at '{self.step}'; {await self.state_seen()}"
                self.tell(self.result)
                await self.withdraw_fences("its recovery was cancelled")
            raise
        await self.withdraw_fences("its recovery is over")
        return result

    def end(self, how: RecoveryEnd, text: str) -> RecoveryResult:
        """The result, with the state that is left described in it."""
        full = text if how is RecoveryEnd.TRAINING else f"{text}. {self.state_now()}"
        self.result = full
        self.tell(full)
        self.at(how)
        return RecoveryResult(
            ended=how,
            text=full,
            native=self.native,
            receipt=self.fence_receipt() if self.stopped_at is not None else None,
            progress=self.progress,
            spans=self.spans,
            old_ended_at=self.stopped_at,
            in_place=self.inp.in_place,
            cluster=self.now_in if self.now_in != self.inp.cluster else "",
        )

    def state_now(self) -> str:
        """What the job's state is if the runbook ends here, and how to give it back."""
        if self.over_here:
            return f"the job is {self.native.phase} ({self.native.reason or 'no reason'})"
        if self.running_here:
            return f"attempt {self.inp.generation} was started, and is held against the scheduler's own requeue"
        if self.stopped_at is not None:
            return (
                f"the job stays held in the queue of {self.inp.cluster} (native id {self.native.native_id}); "
                f"give it back with `runbook release {self.inp.job}`"
            )
        return "the job was not touched"

    async def state_seen(self) -> str:
        """The same by what the cluster shows now: a step that was cancelled may have had its effect."""
        try:
            self.native = await self.act(
                api.READ_JOB,
                api.OnJob(cluster=self.now_in, native_id=self.native.native_id),
                cluster=self.now_in,
                summary="what is left",
            )
        except (StepFailed, ActivityError) as failed:
            return f"{self.state_now()} as far as is known, for the cluster could not be read ({failed})"
        native, old = self.native, self.inp.old
        release = f"give it back with `runbook release {self.inp.job}`"
        if native.phase is Phase.RUNNING and native.restarts == old.restarts:
            return f"attempt {old.generation} runs on {', '.join(native.nodes)} and was not stopped"
        if native.phase is Phase.RUNNING:
            held = f"held against the scheduler's own requeue; {release}" if native.held else "not held by us yet"
            return f"attempt {self.inp.generation} runs on {', '.join(native.nodes)}, {held}"
        if native.phase in {Phase.PENDING, Phase.STOPPING} and native.held:
            return f"the job stays held in the queue of {self.inp.cluster} (native id {native.native_id}); {release}"
        return f"the job is {native.phase} ({native.reason or 'no reason'}) and not held by us"

    def recovery_view(self) -> View:
        """What both kinds of recovery show."""
        return self.view_with(
            next=self.next,
            verdict=self.inp.verdict,
            op=self.inp.op,
            result=self.result,
        )

    # -- the steps

    async def get_permission(self) -> RecoveryResult | None:
        inp = self.inp
        self.spans = (Span(stage=Stage.DETECT, start=inp.detected_at, end=inp.decided_from),)
        self.at("permission", then="checkpoint")
        if inp.decision.delay:
            self.at("delay", waits=f"{inp.decision.delay:.0f} s before try again in place", then="checkpoint")
            await workflow.sleep(inp.decision.delay, summary="delay of the ladder")
        self.stage(Stage.DECIDE, inp.decided_from)
        start = self.now()
        allowed = await self.allowed(
            inp.decision.mode,
            title=f"{'Restart' if inp.in_place else 'Fail over'} {inp.job}",
            why=f"{inp.verdict.title}. {inp.decision.why}",
            steps=self.plan(),
            evidence=inp.verdict.shown,
            requester=inp.requester,
            cluster=inp.cluster,
        )
        if inp.decision.mode != "auto":
            self.stage(Stage.PERSON, start)
        return None if allowed else self.end(RecoveryEnd.DENIED, "not allowed")

    def plan(self) -> tuple[str, ...]:
        """The steps in words, for a person's approval and for a dry run."""
        inp = self.inp
        return recovery_steps(
            in_place=inp.in_place,
            exclude=inp.decision.exclude,
            signal=inp.native.tokens.checkpoint_signal,
            old=inp.old,
            generation=inp.generation,
        )

    async def save_checkpoint(self) -> RecoveryResult | None:
        """Asks only where the job declares a signal, and where the ranks can still answer."""
        signal = self.native.tokens.checkpoint_signal
        if not signal or self.native.restarts != self.inp.old.restarts:
            return None
        self.at("checkpoint", waits=f"a checkpoint after {signal}", then="stop")
        start = self.now()
        try:
            out = await self.act(
                api.REQUEST_CHECKPOINT,
                api.Checkpoint(
                    cluster=self.inp.cluster,
                    native_id=self.native.native_id,
                    restarts=self.inp.old.restarts,
                    signal=signal,
                    grace=self.inp.decision.checkpoint_grace,
                    newer_than=self.progress.saved,
                ),
                cluster=self.inp.cluster,
                summary=f"ask for a checkpoint ({signal})",
            )
            self.tell(f"saved step {out.saved}" if out.asked and not out.why else f"no new checkpoint: {out.why}")
        except StepFailed as failed:
            self.tell(f"no new checkpoint: {failed}")  # the last periodic one has to do
        self.stage(Stage.STOP, start, "checkpoint")
        return None

    async def move(self) -> RecoveryResult | None:
        """Stop, fence, start. Again from the stop while the cluster turns out to have forgotten it: a controller
        that dies loses what it acknowledged in its last 2 s (measured)."""
        while True:
            early = await self.stop()
            if early is None and await self.fence():
                early = await self.start()
            if early is not None or self.running_here:
                return early

    async def stop(self) -> RecoveryResult | None:
        self.at("stop", waits="the attempt to end", then="fence")
        start = self.now()
        try:
            out = await self.must(
                api.STOP_JOB,
                api.Stop(
                    cluster=self.inp.cluster,
                    native_id=self.native.native_id,
                    restarts=self.inp.old.restarts,
                    timeout=600,
                ),
                cluster=self.inp.cluster,
                summary=f"stop attempt {self.inp.old.generation} with grace",
            )
        except StepFailed as failed:
            return self.end(RecoveryEnd.JOB_ENDED, str(failed))
        self.native, self.ordered, self.stopped_at = out.job, out.ordered, out.ended_at
        self.stage(Stage.STOP, start)
        self.tell("stopped, held in the queue")
        return None

    async def start(self) -> RecoveryResult | None:
        """From here on only forward."""
        self.at("start", waits="the scheduler to take it", then="running")
        start, stopped = self.now(), self.native
        try:
            self.native = await self.must(
                api.START_ATTEMPT,
                api.Start(
                    cluster=self.inp.cluster,
                    order=StartOrder(
                        native_id=self.native.native_id,
                        restarts=self.native.restarts,
                        exclude=self.inp.decision.exclude,
                        require=self.inp.old.nodes if self.inp.in_place and self.ordered_here else (),
                    ),
                    receipt=self.fence_receipt(),
                    old_nodes=self.inp.old.nodes,
                ),
                cluster=self.inp.cluster,
                summary=f"start attempt {self.inp.generation}",
            )
        except StepFailed as failed:
            if await self.stop_was_forgotten():
                return None
            return self.end(RecoveryEnd.STUCK, str(failed))
        if self.native.restarts < stopped.restarts:
            return self._start_was_forgotten()
        self.running_here = True
        self.stage(Stage.REQUEUE, start)
        return None

    def _start_was_forgotten(self) -> RecoveryResult:
        """Its controller died after the order and lost the stop and the start: whether the new ranks live nobody can
        tell here, and one more start would be of the same generation."""
        self.over_here = True  # neither held nor running as we left it: the state is told as the cluster shows it
        return self.end(
            RecoveryEnd.STUCK,
            f"{self.inp.cluster} forgot that {self.inp.job} was stopped and started again; look whether ranks of "
            f"attempt {self.inp.generation} are left on any node, then retry",
        )

    async def see_running(self) -> RecoveryResult | None:
        self.at("requeue wait", waits="nodes for the next attempt", then="first new step")
        start = self.now()
        try:
            self.native = await self.must(
                api.WAIT_RUNNING,
                api.WaitRunning(
                    cluster=self.inp.cluster,
                    native_id=self.native.native_id,
                    restarts=self.native.restarts,
                    timeout=self.inp.decision.run_timeout,
                ),
                cluster=self.inp.cluster,
                summary="wait until it runs, then hold it again",
            )
        except StepFailed as failed:
            return await self._not_seen_running(str(failed))
        self.stage(Stage.START, start)
        self.tell(f"running on {', '.join(self.native.nodes)}")
        return None

    async def _not_seen_running(self, why: str) -> RecoveryResult:
        """An attempt may be over before anybody saw it run; it was one all the same, and goes into the ledger."""
        native = await self.read_job("did it run?")
        if native.restarts < self.native.restarts:
            self.native, self.running_here = native, False
            return self._start_was_forgotten()
        over = native.phase.ended and native.phase is not Phase.CANCELLED
        if native.launch_failed and native.restarts == self.native.restarts + 1:
            over, native = True, native.model_copy(update={"restarts": self.native.restarts})
        if not over or native.restarts <= self.inp.old.restarts:
            return self.end(RecoveryEnd.STUCK, why)
        self.native, self.over_here = native, True
        return self.end(RecoveryEnd.NO_STEP, f"attempt {self.inp.generation} was over before it was seen running")

    async def see_new_step(self) -> RecoveryResult:
        """RUNNING is no progress: done only when a new training step is seen."""
        self.at("first new step", waits="a training step above the resumed one")
        start = self.now()
        waiting = asyncio.create_task(self._wait_step())
        try:
            await workflow.wait_condition(lambda: waiting.done() or bool(self._trouble_here()))
            if not waiting.done():
                why = "; ".join(f"{e.kind} {e.code or ''} on {e.node}" for e in self._trouble_here()[:3])
                return self.end(RecoveryEnd.NO_STEP, f"another fault before its first step: {why}")
            seen = waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        self.stage(Stage.FIRST_STEP, start)
        self.progress = seen.progress
        if not seen.ok:
            return self.end(RecoveryEnd.NO_STEP, seen.why)
        resumed = "" if seen.progress.resumed_from is None else f", resumed from step {seen.progress.resumed_from}"
        return self.end(RecoveryEnd.TRAINING, f"training again: step {seen.progress.step}{resumed}")

    def _trouble_here(self) -> tuple[Evidence, ...]:
        """Evidence about a node that the new attempt runs on, from after its start."""
        since = self.native.started_at or 0.0
        here = (
            self.trouble if self.now_in == self.inp.cluster else [e for e in self.trouble if e.cluster == self.now_in]
        )
        return tuple(e for e in here if e.node in self.native.nodes and (e.happened_at or e.seen_at) >= since)

    async def _wait_step(self) -> api.StepSeen:
        return await self.must(
            api.WAIT_STEP,
            api.WaitStep(
                cluster=self.now_in,
                native_id=self.native.native_id,
                restarts=self.native.restarts,
                resumed=self.progress.saved,
                total=self.native.tokens.total_steps,
                timeout=self.inp.decision.step_timeout,
            ),
            cluster=self.now_in,
            summary="wait for the first new step",
        )

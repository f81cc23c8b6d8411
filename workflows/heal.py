"""`HealNode`: the only runbook that isolates, fences, repairs and returns a node.

lease -> isolate -> evacuate (through the jobs' own runbooks) -> reboot, proven -> check -> return -> lease back

A node that cannot answer is fenced by power; the proven power-off or reboot is the receipt for every job that asked.
"""

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.budget import ORDER_RULE
    from fleet.model import NodeFacts, NodeReceipt, NodeState, ReceiptGrade, is_newer
    from fleet.people import Choice
    from fleet.plans import isolate_steps, reboot_steps, return_steps
    from fleet.runbooks import VIEW, Ending, Evacuated, HealInput, HealRequestNote, Runbook, Signal, View
    from workflows.base import Abandoned, StepFailed
    from workflows.evacuation import Evacuation

FORGETS = 10.0
"""Seconds for which a mark must have stood to be safe from a crash of the controller: slurmctld that was killed lost
what it had acknowledged within its last 2 s (measured)."""

LOOK_AFTER_RELEASE = 5.0
"""Seconds until the release is looked at again, for the same reason."""


@workflow.defn(name=Runbook.HEAL)
class HealNode(Evacuation):
    """One per node; its workflow id is the node's lock."""

    kind = Runbook.HEAL

    @workflow.init
    def __init__(self, inp: HealInput) -> None:
        super().__init__(inp)
        self.unchecked = ""
        self.checked = NodeFacts(cluster=inp.cluster, node=inp.node, state=NodeState.UNKNOWN)

    @workflow.run
    async def run(self, inp: HealInput) -> Ending:
        try:
            await self.heal()
        except Abandoned as given_up:
            self.result = f"given up at '{given_up.step}' ({given_up.choice}): {given_up}"
        except StepFailed as failed:
            self.result = f"stopped: {failed}"
        except BaseException as error:
            if is_cancelled_exception(error):
                await self.leave()
            raise
        self.leaving = workflow.cancellation_reason() is not None  # it came too late to stop anything
        if not self.returned:
            self.result = f"{self.result}. {await self.left_state()}"
        await self.give_lease_back()
        await self.close()
        return Ending(text=self.result, ok=self.reached)

    # -- messages

    @workflow.signal(name=Signal.REQUEST)
    async def request(self, note: HealRequestNote) -> None:
        """More evidence, or a job that waits for a fence. The node is isolated, so an older receipt holds for it."""
        self.take_request(note)
        if self.receipt is None or workflow.cancellation_reason() is not None:
            return
        try:
            await self.hand_out(self.receipt)
        except (Abandoned, StepFailed) as failed:
            self.tell(f"{note.fence_for} could not be given its receipt: {failed}")

    @workflow.signal(name=Signal.EVACUATED)
    def evacuated(self, note: Evacuated) -> None:
        """A job has left, proven."""
        self.tell(f"{note.job} has left{': ' + note.text if note.text else ''}")
        self.left.add(note.job)

    @workflow.signal(name=Signal.WITHDRAWN)
    def withdrawn(self, note: Evacuated) -> None:
        """A job waits for its fence no more."""
        if self.wants_fence.pop(note.job, None) is not None:
            self.tell(f"{note.job} needs no fence any more{': ' + note.text if note.text else ''}")

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The node as `runbook describe` and `why` show it."""
        return self.view_with(
            next=self.next,
            verdict=self.verdict,
            op=self.op,
            result=self.result,
        )

    # -- the order of safe steps

    async def heal(self) -> None:
        """Named steps; each may end the runbook by setting `result`."""
        for step in (
            self.judge,
            self.take_lease,
            self.isolate,
            self.evacuate,
            self.keep_isolated,
            self.repair,
            self.keep_isolated,
            self.check,
            self.bring_back,
        ):
            await step()
            if self.result:
                return

    async def isolate(self) -> None:
        """No new work lands on it; running work goes on. Somebody else's drain stays theirs."""
        self.at("isolate", then="evacuate")
        policy = await self.policy(self.inp.cluster)
        facts = await self.facts_now()
        if self.mark and self.take_over(facts):
            return
        if facts.foreign_drain:
            await self.ask_about_foreign_drain(facts)
            return
        if facts.op is not None and facts.op != self.op:
            if self.verdict is None or self.verdict.rule != ORDER_RULE:
                await self.leave_to_older_mark(facts)
                return
            self.mark, self.isolated_at = facts.op, self.now()
            self.tell(f"isolated before with mark gpu-runbooks:{self.mark}, taken over by a person's order")
            return
        allowed = await self.allowed(
            policy.mode("isolate"),
            title=f"Isolate {self.inp.node}",
            why=self.why(),
            steps=isolate_steps(self.inp.node),
            cluster=self.inp.cluster,
        )
        if not allowed:
            self.result = "isolation not allowed"
            return
        if await self.needs_nothing():
            return
        facts = await self.must(
            api.ISOLATE_NODE,
            api.OnNode(cluster=self.inp.cluster, node=self.inp.node, op=self.op, text=self.why()[:120]),
            cluster=self.inp.cluster,
            summary=f"isolate {self.inp.node}",
        )
        if facts.foreign_drain:
            await self.ask_about_foreign_drain(facts)
            return
        self.isolated_at = self.now()
        self.tell(f"isolated with mark gpu-runbooks:{self.op}")

    def take_over(self, facts: NodeFacts) -> bool:
        """A wave has isolated it with a mark that is ours now. Gone: a person took it away, whose word holds."""
        if facts.op == self.mark:
            self.tell(f"isolated before with mark gpu-runbooks:{self.mark}, by a wave")
            return True
        if not facts.drained:
            self.result = "stopped: somebody took away the mark with which a wave had isolated it"
        return not facts.drained

    async def keep_isolated(self) -> None:
        """Looks again before the node is touched. A mark that never stood for long was lost with its controller and
        is set again, and so is the evacuation; one that did was taken away by a person, whose word holds."""
        while not (self.foreign or self.powered_off or self.result):
            facts = await self.facts_now()
            ours = facts.op == self.op
            if facts.foreign_drain or (ours and not facts.jobs):
                return
            if not ours and self.mark_seen_at - self.isolated_at > FORGETS:
                self.result = "stopped: somebody took our mark away"
                return
            self.tell("the controller forgot its jobs' end" if ours else "the controller forgot our mark")
            if not ours:
                await self.isolate()
            if not self.result:
                await self.evacuate()

    async def ask_about_foreign_drain(self, facts: NodeFacts) -> None:
        """Repairing under somebody else's drain needs a person; it stays drained by its owner afterwards."""
        self.foreign = facts.reason or "a drain without a reason"
        outcome = await self.ask(
            title=f"{self.inp.node} is drained by somebody else",
            why=f"{self.why()} The node was drained before us: '{self.foreign}'.",
            steps=("approve: evacuate, reboot and check it; it stays drained by its owner", "deny: leave it alone"),
            cluster=self.inp.cluster,
        )
        if outcome.choice is not Choice.APPROVE:
            self.result = f"left alone: drained by somebody else ('{self.foreign}')"

    async def leave_to_older_mark(self, facts: NodeFacts) -> None:
        """An earlier runbook ended and left the node to a person, who is not woken again, unless a job waits."""
        left = (
            f"it carries the mark gpu-runbooks:{facts.op} of an earlier runbook that left it to a person; "
            f"`runbook release {self.inp.cluster}/{self.inp.node}` gives it back, "
            f"`runbook start heal {self.inp.cluster}/{self.inp.node}` repairs it"
        )
        if self.wants_fence:
            outcome = await self.ask(
                title=f"{self.inp.node} was left isolated, and {', '.join(self.wants_fence)} waits for its fence",
                why=f"{self.why()} The node is not touched: {left}.",
                steps=(
                    "retry: isolate, fence and repair it, once it was given back",
                    "abort: leave it; the job waits",
                ),
                options=(Choice.RETRY, Choice.ABORT),
                default=Choice.ABORT,
                cluster=self.inp.cluster,
            )
            if outcome.choice is Choice.RETRY:
                await self.isolate()
                return
        self.result = f"left alone: {left}"

    async def repair(self) -> None:
        """The rung of the verdict. Requested is not done: proof is a newer boot."""
        rung = self.verdict.first_rung if self.verdict else "reboot"
        if self.is_only_suspect:
            rung = "none"
        if rung == "person":
            await self.hand_over("its verdict says that a person must repair this")
        if self.result or (rung == "none" and not self.powered_off):
            return
        self.at("reboot", waits="a newer boot", then="check")
        policy = await self.policy(self.inp.cluster)
        allowed = await self.allowed(
            policy.mode("reboot"),
            title=f"Reboot {self.inp.node}",
            why=self.why(),
            steps=reboot_steps(self.inp.node),
            cluster=self.inp.cluster,
        )
        if not allowed:
            self.result = "reboot not allowed"
            return
        if rung == "reset":
            self.tell("a GPU reset cannot be ordered on this cluster; the reboot does it")
        await self.reboot()

    async def reboot(self) -> None:
        """By the scheduler, or by power where the node's daemon does not answer or the first way fails."""
        facts = await self.facts_now()
        if not self.powered_off and facts.responding and is_newer(facts, self.boot_before, self.booted_before):
            self.tell(f"superseded: somebody else booted it ({self.boot_before} -> {facts.boot}); not rebooted again")
            await self.booted(facts)
            return
        policy = await self.policy(self.inp.cluster)
        if self.powered_off or not facts.responding:
            await self.power_cycle()
            return
        try:
            facts = await self.act(
                api.REBOOT_NODE,
                api.Reboot(
                    cluster=self.inp.cluster,
                    node=self.inp.node,
                    op=self.op,
                    requested_at=self.now(),
                    boot_before=self.boot_before,
                    booted_before=self.booted_before,
                    timeout=policy.reboot_timeout,
                ),
                cluster=self.inp.cluster,
                summary=f"reboot {self.inp.node}",
            )
        except StepFailed as failed:
            self.tell(f"the reboot did not succeed: {failed}")
            facts = await self.facts_now()
            if facts.op == self.op or facts.foreign_drain or not facts.responding:
                await self.power_cycle()
                return
            await self.keep_isolated()  # the mark is gone: nothing is powered off in service
            if not self.result:
                await self.reboot()
            return
        await self.booted(facts)

    async def power_cycle(self) -> None:
        """Off and read back as off, then on, then a newer boot."""
        if not self.powered_off:
            await self.power_off()
        if self.result:
            return
        facts = await self.must(
            api.POWER_ON,
            api.PowerOn(
                cluster=self.inp.cluster,
                node=self.inp.node,
                op=self.op,
                boot_before=self.boot_before,
                booted_before=self.booted_before,
                timeout=(await self.policy(self.inp.cluster)).reboot_timeout,
            ),
            cluster=self.inp.cluster,
            summary=f"power on {self.inp.node}",
        )
        self.powered_off = self.off_ordered = False
        await self.booted(facts)

    async def booted(self, facts: NodeFacts) -> None:
        """A proven boot: the receipt for every job that was on the old one."""
        self.tell(f"booted again: {facts.boot}")
        await self.hand_out(
            NodeReceipt(
                node=self.inp.node,
                grade=ReceiptGrade.BOOT_CHANGED,
                detail=f"boot {self.boot_before} -> {facts.boot}",
                at=self.now(),
            )
        )

    async def check(self) -> None:
        """Ready is not healthy: only a passed check lets it back."""
        self.at("check", waits="the quick check", then="return")
        allowed = await self.allowed(
            (await self.policy(self.inp.cluster)).mode("check"),
            title=f"Check {self.inp.node}",
            why=f"{self.why()} Nothing returns without a passed check.",
            steps=("quick check while nothing else can land there",),
            cluster=self.inp.cluster,
        )
        if not allowed:
            self.result = "check not allowed; it stays isolated"
            return
        while True:
            self.checked = await self.facts_now()
            try:
                result = await self.must(
                    api.CHECK_NODE,
                    api.Check(cluster=self.inp.cluster, node=self.inp.node, op=self.op),
                    cluster=self.inp.cluster,
                    summary=f"quick check of {self.inp.node}",
                )
            except StepFailed as refused:
                if not self.foreign:
                    raise
                self.unchecked = str(refused)
                self.tell(f"not checked under somebody else's drain: {refused}")
                return
            if result.passed:
                self.tell(f"check passed: {result.gpus} GPUs")
                return
            what = "failed" if result.ran else "could not run (that is not the same as sick)"
            outcome = await self.ask(
                title=f"{self.inp.node}: the check {what}",
                why=result.detail or "no detail",
                steps=("retry: check again", "take_over: it stays isolated for a person"),
                options=(Choice.RETRY, Choice.TAKE_OVER),
                default=Choice.TAKE_OVER,
                cluster=self.inp.cluster,
            )
            if outcome.choice is not Choice.RETRY:
                self.result = f"check {what}: {result.detail}; left to {outcome.by}"
                return

    async def bring_back(self) -> None:
        """Only the boot that passed the check, and only what carries our mark."""
        self.at("return")
        while is_newer(facts := await self.facts_now(), self.checked.boot, self.checked.booted_at):
            self.tell(f"superseded: the boot that was checked is gone ({self.checked.boot} -> {facts.boot})")
            await self.check()
            if self.result:
                return
            self.at("return")
        if self.foreign:
            done = "rebooted but not checked" if self.unchecked else "repaired and checked"
            self.result = f"{done}; it stays drained by its owner ('{self.foreign}')"
            self.returned, self.reached = True, not self.unchecked
            return
        policy = await self.policy(self.inp.cluster)
        allowed = await self.allowed(
            policy.mode("return"),
            title=f"Return {self.inp.node} to work",
            why=f"It was {'rebooted' if self.receipt else 'looked at'} and passed its check.",
            steps=return_steps(),
            cluster=self.inp.cluster,
        )
        if not allowed:
            self.result = "return not allowed; it stays isolated"
            return
        await self.release()
        self.returned = self.reached = True
        repaired = self.receipt or not self.is_only_suspect
        self.result = f"{'repaired, ' if repaired else ''}checked and back at work"

    async def release(self) -> None:
        """Takes our mark away, and looks once more whether it stayed away."""
        while True:
            await self.must(
                api.RELEASE_NODE,
                api.OnNode(cluster=self.inp.cluster, node=self.inp.node, op=self.op),
                cluster=self.inp.cluster,
                summary=f"return {self.inp.node} to work",
            )
            if workflow.cancellation_reason() is not None:
                return  # it came too late to stop anything
            await workflow.sleep(LOOK_AFTER_RELEASE, summary="then look whether the release stands")
            if (await self.facts_now()).op != self.op:
                return
            self.tell("the controller forgot the release")

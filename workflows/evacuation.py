"""What `HealNode` does around other people's work: the lease, the evacuation, the fence and its receipts."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.evacuation import EvacuationState, Hold
    from fleet.faults.evidence import Evidence, FaultClass, Verdict
    from fleet.identity import node_workflow_id
    from fleet.model import NodeFacts, NodeReceipt, NodeState, ReceiptGrade
    from fleet.people import Choice
    from fleet.plans import power_off_steps
    from fleet.runbooks import HealInput, HealRequestNote, Runbook, Signal
    from fleet.units import clock_text
    from workflows import attributes
    from workflows.base import StepFailed
    from workflows.occupants import Occupants, lost_with_power, names_of

LEASE_WAITS = (5.0, 10.0, 20.0, 60.0)
"""Seconds between two askings for a lease; the last one repeats."""
LEASE_ASK_AFTER = 900.0
"""Seconds after which a person is told that the limit keeps a node waiting."""
HOLDER_WAITS = (2.0, 5.0, 10.0, 30.0)
"""Seconds between two looks at who is still on the node; a signal shortens them."""

SHOWN = 5
"""Of those that are still on a node, as many are told with their reasons on its page."""
SOON = 0.1
"""Seconds after the drain's deadline at which it is looked at."""
SILENT_AFTER = 30.0
"""Seconds of silence before a node that the scheduler has not given up counts as lost (a slurmctld that restarts
shows its nodes as silent for a few seconds, measured)."""


class Evacuation(Occupants):
    """State of one node's repair, and the steps that wait for others."""

    kind = Runbook.HEAL

    def __init__(self, inp: HealInput) -> None:
        super().__init__(inp)
        self.evidence: tuple[Evidence, ...] = ()
        self.verdict: Verdict | None = None
        self.wants_fence: dict[str, bool] = {}
        self.suspect = False
        self.left: set[str] = set()
        self.receipt: NodeReceipt | None = None
        self.boot_before = ""
        self.booted_before = 0.0
        self.powered_off = False
        self.off_ordered = False
        self.silent_since: float | None = None
        self.leased = False
        self.mark = ""
        """Of a wave that has isolated the node already: ours since the lease."""
        self.isolated_at = 0.0
        self.mark_seen_at = 0.0
        self.foreign = ""
        self.returned = False
        self.reached = False
        self.headline = f"Node {inp.node} of {inp.cluster}"
        self.take_request(inp.request)

    def take_request(self, note: HealRequestNote) -> None:
        """Merges what others know; a hardware verdict is never lowered."""
        known = {e.key for e in self.evidence}
        self.evidence = (*self.evidence, *(e for e in note.evidence if e.key not in known))
        if note.verdict and (self.verdict is None or self.verdict.fault is not FaultClass.HARDWARE):
            self.verdict = note.verdict
        self.suspect = self.suspect or note.suspect
        if note.fence_for and note.fence_for not in self.wants_fence:
            self.wants_fence[note.fence_for] = False
            self.story = (*self.story, f"{note.fence_for} waits for a fence")

    @property
    def has_cause(self) -> bool:
        """A fault that is worth a repair, a suspicion worth a check, or a job that waits for a fence."""
        return bool(self.wants_fence) or self.suspect or self.is_faulty

    @property
    def is_faulty(self) -> bool:
        """Its own hardware is the cause."""
        return self.verdict is not None and self.verdict.fault is FaultClass.HARDWARE

    @property
    def is_only_suspect(self) -> bool:
        """Nothing is known against it: it is checked, and not rebooted."""
        return self.suspect and not self.is_faulty

    def evidence_lines(self) -> tuple[str, ...]:
        """What was seen on the node."""
        return tuple(e.text for e in self.evidence) or (self.verdict.shown if self.verdict else ())

    def why(self) -> str:
        """One line for reasons and questions."""
        if self.verdict and (self.suspect or self.is_faulty):
            return self.verdict.title or self.verdict.rule
        waiting = ", ".join(self.wants_fence)
        return f"fence for {waiting}" if waiting else "no verdict yet"

    async def facts_now(self) -> NodeFacts:
        """The node, live; its first boot is remembered as the old one."""
        facts = await self.must(
            api.READ_NODE,
            api.OnNode(cluster=self.inp.cluster, node=self.inp.node),
            cluster=self.inp.cluster,
            summary=f"read {self.inp.node}",
        )
        if facts.op == self.op:
            self.mark_seen_at = self.now()
        if not self.boot_before:
            self.boot_before, self.booted_before = facts.boot, facts.booted_at
        return facts

    async def judge(self) -> None:
        """Only hardware is worth a repair; a job's wish for a fence is served in any case."""
        self.at("judge", then="lease")
        if self.verdict is None:
            self.verdict = await self.must(
                api.JUDGE,
                api.JudgeIn(cluster=self.inp.cluster, evidence=self.evidence, node=self.inp.node),
                summary="judge",
            )
        self.facts["Verdict"] = f"{self.verdict.title} ({self.verdict.fault}, rule {self.verdict.rule})"
        workflow.upsert_search_attributes([attributes.FAULT.value_set(str(self.verdict.fault))])
        await self.drop_old_evidence()
        if not self.result and not self.has_cause:
            self.result = f"nothing to repair: {self.verdict.title} ({self.verdict.fault})"
            self.reached = True

    async def needs_nothing(self) -> bool:
        """Only a fence was wanted, and nobody waits for it any more: what was seen of the node decides, once more."""
        if not self.has_cause:
            self.verdict = None
            await self.judge()
        return bool(self.result)

    async def drop_old_evidence(self) -> None:
        """Evidence from an earlier boot is void: the node was rebooted since, and nobody needs it twice."""
        facts = await self.facts_now()
        stamped = [e for e in self.evidence if e.boot]
        void = bool(stamped) and len(stamped) == len(self.evidence) and all(e.boot != facts.boot for e in stamped)
        if void and facts.responding and not facts.drained:
            self.result = f"nothing to repair: the evidence is from before the present boot ({facts.boot})"
            self.reached = True

    # -- the lease

    @property
    def op(self) -> str:
        """The mark that was taken over, else this incarnation's own."""
        return self.mark or super().op

    def _wish(self) -> api.LeaseIn:
        return api.LeaseIn(
            cluster=self.inp.cluster,
            node=self.inp.node,
            holder=node_workflow_id(self.inp.cluster, self.inp.node),
            op=self.op,
        )

    async def take_lease(self) -> None:
        """One node out per cluster at a time (or as many as the policy allows)."""
        self.at("lease", waits=f"the limit of {self.inp.cluster}", then="isolate")
        start, asked, waits = self.now(), False, list(LEASE_WAITS)
        while True:
            self.leased = True  # it may be granted to an asking that is cancelled meanwhile
            answer = await self.must(api.ACQUIRE_LEASE, self._wish(), summary="ask for the lease")
            if answer.granted:
                self.mark, self.isolated_at = answer.mark, answer.marked_at
                return
            self.leased = False
            self.tell(f"waits for a lease: {answer.why}")
            if not asked and self.now() - start > LEASE_ASK_AFTER:
                asked = True
                outcome = await self.ask(
                    title=f"{self.inp.node} waits for the limit of {self.inp.cluster}",
                    why=f"{self.why()} {answer.why}",
                    steps=("retry: go on waiting", "abort: leave the node as it is"),
                    options=(Choice.RETRY, Choice.ABORT),
                    default=Choice.RETRY,
                    cluster=self.inp.cluster,
                )
                if outcome.choice is Choice.ABORT:
                    self.result = f"not isolated: {answer.why}"
                    return
            wait = waits.pop(0) if len(waits) > 1 else waits[0]
            await self._pause(wait, lambda: not self.has_cause, "ask for the lease again")
            if await self.needs_nothing():
                return

    async def give_lease_back(self) -> None:
        """Only once the node is back, or this runbook ends; a dead holder's lease is freed by the guard."""
        if not self.leased:
            return
        self.leased = False
        try:
            await self.act(api.RELEASE_LEASE, self._wish(), summary="give the lease back")
        except StepFailed as failed:
            self.tell(f"the lease could not be given back, the guard frees it: {failed}")

    # -- the evacuation

    async def evacuate(self) -> None:
        """Waits until nobody holds the node: supervised jobs move by their own runbooks, what is made again elsewhere
        is asked to leave, others end by themselves."""
        self.at("evacuate", waits="the jobs on it", then="reboot")
        policy = await self.policy(self.inp.cluster)
        deadline = self.now() + policy.drain_deadline
        told: set[str] = set()
        may: bool | None = True if policy.mode("evacuate") == "auto" else None
        waits = list(HOLDER_WAITS)
        while not self.result:
            facts = await self.facts_now()
            holders = await self._holders()
            rest = await self.clear(evict=may is True)
            if facts.responding and not holders and not facts.jobs and not rest.occupants:
                self.tell("nobody holds it any more")
                self.facts["Still there"] = ""
                return
            if self._is_lost(facts) and await self._fence_if_all_asked(holders, rest):
                return
            if facts.responding and self.stuck(holders, rest):
                await self.power_off()
                return
            if may is None and (movable := self._movable(holders, rest, policy)):
                may = await self._may_evacuate(policy, movable)
            if may:
                await self._tell_jobs(holders, told)
            names = names_of(holders, rest.occupants) or "its own daemon"
            self.facts["Still there"] = "; ".join(map(str, rest.occupants[:SHOWN]))
            self.at("evacuate", waits=f"{names}; a person is asked at {clock_text(deadline)}", then="reboot")
            if self.now() > deadline:
                await self.ask_about_rest(facts, holders, rest, has_power=policy.has_power)
                policy = await self.policy(self.inp.cluster)
                deadline, waits = self.now() + policy.drain_deadline, list(HOLDER_WAITS)
                continue
            pause = max(rest.again_in, waits.pop(0) if len(waits) > 1 else waits[0])
            await self._until_told(min(pause, max(deadline - self.now(), 0.0) + SOON))

    def _is_lost(self, facts: NodeFacts) -> bool:
        """The scheduler gave it up, or it has been silent for a while; a controller's restart looks silent too."""
        if facts.responding:
            self.silent_since = None
            return False
        self.silent_since = self.silent_since or self.now()
        return facts.state is NodeState.DOWN or self.now() - self.silent_since > SILENT_AFTER

    async def _pause(self, seconds: float, until: Callable[[], bool], then: str) -> None:
        """A while, or until that holds."""
        try:
            await workflow.wait_condition(until, timeout=timedelta(seconds=seconds), timeout_summary=then)
        except TimeoutError:
            return

    async def _until_told(self, seconds: float) -> None:
        """A while, or until a job says something."""
        before = (len(self.wants_fence), len(self.left))
        await self._pause(
            seconds, lambda: (len(self.wants_fence), len(self.left)) != before, "then look at the node again"
        )

    async def _holders(self) -> tuple[api.JobOn, ...]:
        found = await self.must(
            api.READ_HOLDERS,
            api.OnNode(cluster=self.inp.cluster, node=self.inp.node),
            cluster=self.inp.cluster,
            summary=f"who holds {self.inp.node}",
        )
        return found.jobs

    @staticmethod
    def _movable(holders: tuple[api.JobOn, ...], rest: EvacuationState, policy: api.PolicyOut) -> str:
        """Names of those that an evacuation asks to leave."""
        may = {Hold.MOVABLE, Hold.WORK} if policy.evict_others else {Hold.MOVABLE}
        jobs = [h.name for h in holders if h.name]
        return ", ".join([*jobs, *(o.id for o in rest.occupants if o.hold in may)])

    async def _may_evacuate(self, policy: api.PolicyOut, names: str) -> bool:
        """Whether those that can move are told to leave; if not, they are waited for like all others."""
        return await self.allowed(
            policy.mode("evacuate"),
            title=f"Evacuate {self.inp.node}",
            why=f"{self.why()} These are on it: {names}.",
            steps=(f"tell {names} of the fault: a job decides by its own ladder, a pod is evicted",),
            cluster=self.inp.cluster,
        )

    async def _tell_jobs(self, holders: tuple[api.JobOn, ...], told: set[str]) -> None:
        """Each supervised job learns of the evidence; it decides by its own ladder and leaves."""
        for holder in holders:
            if holder.name and holder.name not in told:
                told.add(holder.name)
                await self.must(
                    api.TELL_JOB,
                    api.TellJob(
                        job=holder.name,
                        signal=Signal.EVIDENCE,
                        cluster=self.inp.cluster,
                        node=self.inp.node,
                        evidence=self.evidence,
                    ),
                    summary=f"tell {holder.name}",
                )

    # -- the fence

    async def _fence_if_all_asked(self, holders: tuple[api.JobOn, ...], rest: EvacuationState) -> bool:
        """A node that cannot answer counts as evacuated once every job on it has asked."""
        if names := lost_with_power(holders, rest):
            allowed = await self.allowed(
                "approve",
                title=f"Power off {self.inp.node} under work that is not ours",
                why=f"{self.why()} It does not answer, and these are placed on it: {names}.",
                steps=(f"power off {self.inp.node}", f"whatever is left of {names} there is lost"),
                cluster=self.inp.cluster,
            )
            if not allowed:
                self.result = f"not fenced: {names} are not ours"
                return False
        elif any(h.name not in self.wants_fence for h in holders):
            return False
        await self.power_off()
        return not self.result

    async def power_off(self) -> None:
        """Off, read back as off: the strongest receipt. Without a hook, a named person's word."""
        self.at("fence", waits=f"{self.inp.node} to be off", then="reboot")
        policy = await self.policy(self.inp.cluster)
        if not policy.has_power:
            await self._ask_attestation()
            return
        allowed = await self.allowed(
            policy.mode("fence"),
            title=f"Power off {self.inp.node}",
            why=self.why(),
            steps=power_off_steps(self.inp.node),
            cluster=self.inp.cluster,
        )
        if not allowed:
            await self._ask_attestation()
            return
        self.off_ordered = True
        try:
            receipt = await self.must(
                api.POWER_OFF,
                api.OnNode(cluster=self.inp.cluster, node=self.inp.node, op=self.op),
                cluster=self.inp.cluster,
                summary=f"power off {self.inp.node}",
            )
        except StepFailed as failed:
            self.off_ordered = False
            self.tell(f"the power hook refused: {failed}")
            await self._ask_attestation()
            return
        self.powered_off = True
        await self.hand_out(receipt)
        await self.let_go()

    async def _ask_attestation(self) -> None:
        outcome = await self.ask(
            title=f"Is every rank on {self.inp.node} gone?",
            why=(
                f"{self.why()} The node does not answer and nothing here can power it off. "
                "Look at the machine (or switch it off) before you attest."
            ),
            steps=("attest: I have seen that nothing runs there any more", "take_over: it stays as it is"),
            options=(Choice.ATTEST, Choice.TAKE_OVER),
            default=Choice.TAKE_OVER,
            cluster=self.inp.cluster,
        )
        if outcome.choice is not Choice.ATTEST:
            self.result = f"not fenced; left to {outcome.by}"
            return
        await self.hand_out(
            NodeReceipt(
                node=self.inp.node, grade=ReceiptGrade.ATTESTED, detail=f"attested by {outcome.by}", at=self.now()
            )
        )
        self.result = f"attested by {outcome.by}; the node stays isolated until a person repairs it"

    async def hand_out(self, receipt: NodeReceipt) -> None:
        """The one receipt for every job that asked and has none yet."""
        self.receipt = receipt
        for job in [j for j, served in self.wants_fence.items() if not served]:
            await self.must(
                api.TELL_JOB,
                api.TellJob(
                    job=job,
                    signal=Signal.RECEIPT,
                    receipt=receipt,
                    cluster=self.inp.cluster,
                    node=self.inp.node,
                ),
                summary=f"receipt for {job}",
            )
            if job in self.wants_fence:
                self.wants_fence[job] = True
            self.tell(f"gave {job} its receipt ({receipt.grade})")

    # -- ends

    async def hand_over(self, why: str) -> None:
        """Isolated and left to a person."""
        outcome = await self.ask(
            title=f"{self.inp.node} needs a person",
            why=f"{self.why()} {why}",
            steps=("approve: reboot and check it anyway", "take_over: it stays isolated for a person"),
            options=(Choice.APPROVE, Choice.TAKE_OVER),
            default=Choice.TAKE_OVER,
            cluster=self.inp.cluster,
        )
        if outcome.choice is not Choice.APPROVE:
            self.result = f"left isolated: {why}"

    async def leave(self) -> None:
        """Last words after a cancel; nothing destructive follows it."""
        self.leaving = True
        step = self.step
        try:
            state = await self.left_state()
        except ActivityError as error:
            state = f"the state of {self.inp.node} could not be read ({error})"
        self.result = f"cancelled at '{step}'; {state}"
        self.at("left")
        self.tell(self.result)
        await self.give_lease_back()

    async def left_state(self) -> str:
        """Reads the node once more and says what a person finds."""
        try:
            facts = await self.facts_now()
        except StepFailed:
            return f"the state of {self.inp.node} could not be read"
        mark = f"it carries our mark gpu-runbooks:{facts.op}" if facts.op else "it carries no mark of ours"
        back = f"; take it back with `runbook release {self.inp.cluster}/{self.inp.node}`" if facts.op else ""
        power = " A power-off was ordered; look whether it is off." if self.off_ordered else ""
        power = " It is powered off." if self.powered_off else power
        return f"{self.inp.node} is {facts.state}, {mark}{back}.{power}"

    async def close(self) -> None:
        """Stores the report; handlers finish first."""
        self.at("over")
        self.tell(self.result)
        late = [j for j, served in self.wants_fence.items() if not served]
        if late and self.receipt is not None:
            await self.hand_out(self.receipt)
        await workflow.wait_condition(workflow.all_handlers_finished)

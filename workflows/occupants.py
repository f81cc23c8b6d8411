"""What `HealNode` does about those on a node that no runbook of their own moves: asked to leave, named where they
stay, forced only at a person's word."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.evacuation import LOST, EvacuationOrder, EvacuationState, Hold, Occupant, force_step
    from fleet.model import NodeFacts
    from fleet.people import Choice
    from fleet.runbooks import HealInput
    from workflows.base import Book, StepFailed

LET_GO = 60.0
"""Seconds that the cluster gets to take what is on a switched-off node off its books, before it is switched on again:
its pod garbage collector looks every 20 s (kubernetes, pkg/controller/podgc)."""
LET_GO_EVERY = 3.0


class Occupants(Book):
    """The part of a node's evacuation that is not the jobs' own."""

    def __init__(self, inp: HealInput) -> None:
        super().__init__()
        self.inp = inp
        self.forced: tuple[str, ...] = ()
        """Uids of those that a person's approval named."""
        self.told_ignored = False
        self.result = ""

    def why(self) -> str:
        """One line for questions: why the node is to be empty."""
        return ""

    async def clear(self, *, evict: bool, fenced: bool = False) -> EvacuationState:
        """One pass: what may be asked to leave is asked; the answer is who is still there."""
        order = EvacuationOrder(op=self.op, evict=evict, forced=self.forced, fenced=fenced)
        seen = await self.must(
            api.EVACUATE_NODE,
            api.Evacuate(cluster=self.inp.cluster, node=self.inp.node, order=order),
            cluster=self.inp.cluster,
            summary=f"who else is on {self.inp.node}",
        )
        if seen.asked:
            self.tell(f"asked to leave: {', '.join(seen.asked)}")
        if seen.ignored and not self.told_ignored:
            self.told_ignored = True
            self.tell(f"stay with the node: {', '.join(seen.ignored)}")
        passed = tuple(o for o in seen.occupants if not (o.hold is Hold.KEPT and o.uid in self.forced))
        return seen.model_copy(update={"occupants": passed})

    def stuck(self, holders: tuple[api.JobOn, ...], rest: EvacuationState) -> bool:
        """All that is left could not end, and a person said that the power may be taken from under it."""
        approved = {o.holder for o in rest.occupants if o.hold is Hold.STUCK and o.uid in self.forced}
        left = {o.holder for o in rest.occupants} | {h.job.native_id for h in holders}
        return bool(left) and left <= approved

    async def ask_about_rest(
        self, facts: NodeFacts, holders: tuple[api.JobOn, ...], rest: EvacuationState, *, has_power: bool
    ) -> None:
        """At the drain's deadline: wait on, force those named, or leave the node to a person."""
        node = self.inp.node
        force = [o for o in rest.occupants if force_step(o, node) and facts.responding]
        force = [o for o in force if has_power or o.hold is not Hold.STUCK]
        names = names_of(holders, rest.occupants)
        steps = ["retry: wait for another deadline"]
        options: tuple[Choice, ...] = (Choice.RETRY, Choice.TAKE_OVER)
        if force:
            steps += ["approve: force the following", *(f"approve: {force_step(o, node)}" for o in force)]
            options = (Choice.RETRY, Choice.APPROVE, Choice.TAKE_OVER)
        outcome = await self.ask(
            title=f"{node} is still held at the drain's deadline",
            why=f"{self.why()} Still there: {names}. They are not ours to stop.",
            steps=(*steps, "take_over: leave it drained, a person goes on"),
            options=options,
            default=Choice.RETRY,
            evidence=(*(str(o) for o in rest.occupants), *self.evidence_lines()) if rest.occupants else (),
            cluster=self.inp.cluster,
        )
        if outcome.choice is Choice.TAKE_OVER:
            self.result = f"left drained with {names} on it; taken over by {outcome.by}"
        if outcome.choice is Choice.APPROVE:
            self.forced = (*self.forced, *(o.uid for o in force if o.uid not in self.forced))

    async def let_go(self) -> None:
        """The node is off, proven: the cluster takes what is on it off its books, so that it is made again elsewhere
        and its volumes move. What is not gone in time is seen to by the node's own kubelet when it is on again."""
        end = self.now() + LET_GO
        try:
            while names := names_of((), (await self.clear(evict=False, fenced=True)).occupants):
                self.at("fence", waits=f"{names} to be let go", then="reboot")
                if self.now() > end:
                    self.tell(f"not let go in {LET_GO:.0f} s: {names}")
                    return
                await workflow.sleep(LET_GO_EVERY, summary="then look whether they were let go")
        except StepFailed as failed:
            self.tell(f"nothing was let go: {failed}")


def names_of(holders: tuple[api.JobOn, ...], occupants: tuple[Occupant, ...]) -> str:
    """Everybody once: a job by its name, what holds no GPU by its own id."""
    jobs = {h.job.native_id: h.name or h.job.native_id for h in holders}
    return ", ".join([*jobs.values(), *dict.fromkeys(o.id for o in occupants if o.holder not in jobs)])


def lost_with_power(holders: tuple[api.JobOn, ...], rest: EvacuationState) -> str:
    """Names of what is nobody's that asked for the fence, and is not simply made again elsewhere."""
    strangers = tuple(h for h in holders if not h.name)
    return names_of(strangers, tuple(o for o in rest.occupants if o.hold in LOST))

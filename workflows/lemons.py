"""`FindLemons`: once a day, who came back with trouble over four weeks; proposes quarantine and never acts by itself.

tidy the history -> read the clusters -> judge -> propose -> hand those that a person approves to `HealNode`
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, lemon_api
    from fleet.faults.evidence import Culprit, FaultClass, Verdict
    from fleet.lemons import Lemon
    from fleet.people import Choice
    from fleet.policy import Step, StepMode
    from fleet.runbooks import VIEW, Ending, LemonsInput, Runbook, View
    from workflows.base import Abandoned, Book, StepFailed


@workflow.defn(name=Runbook.LEMONS)
class FindLemons(Book):
    """Started by the schedule `lemons`; one run at a time."""

    kind = Runbook.LEMONS

    @workflow.init
    def __init__(self, inp: LemonsInput) -> None:
        super().__init__()
        self.headline = "Lemons: nodes and GPUs that come back with trouble"
        self.result = ""
        self.clusters: tuple[lemon_api.ClusterNodes, ...] = ()
        self.lemons: tuple[Lemon, ...] = ()
        self.proposed: tuple[Lemon, ...] = ()
        self.limits: tuple[str, ...] = ()

    @workflow.run
    async def run(self, inp: LemonsInput) -> Ending:
        ok = True
        try:
            await self.tidy()
            await self.look()
            await self.judge()
            await self.propose()
        except (Abandoned, StepFailed) as failed:
            self.result, ok = f"stopped: {failed}", False
        self.at("done")
        self.tell(self.result)
        return Ending(text=self.result, ok=ok)

    # -- steps

    async def tidy(self) -> None:
        """What is too old is forgotten; a store that cannot do it now does it tomorrow."""
        self.at("tidy the history", then="look at the clusters")
        try:
            gone = (await self.act(lemon_api.TIDY_HISTORY, api.Nothing(), summary="forget what is too old")).rows
        except StepFailed as failed:
            self.tell(f"the history was not tidied: {failed}")
            return
        said = ", ".join(f"{count} {table}" for table, count in sorted(gone.items()))
        self.tell(f"forgotten by age: {said}" if said else "nothing in the history is too old")

    async def look(self) -> None:
        """All clusters at once. One that cannot be read is named, and its nodes are not judged."""
        self.at("look at the clusters", then="judge")
        names = (await self.must(lemon_api.READ_SCOPE, api.Nothing(), summary="which clusters")).clusters
        found = await asyncio.gather(*(self._nodes(name) for name in names))
        self.clusters = tuple(one for one in found if one is not None)

    async def _nodes(self, cluster: str) -> lemon_api.ClusterNodes | None:
        try:
            return await self.act(
                lemon_api.LIST_NODES,
                api.PolicyIn(cluster=cluster),
                cluster=cluster,
                summary=f"nodes of {cluster}",
            )
        except StepFailed as failed:
            self.tell(f"{cluster} could not be read, its nodes are not judged today: {failed}")
            return None

    async def judge(self) -> None:
        """Against the fleet's own quantiles. What is out already, or answered, is told and not proposed."""
        self.at("judge", then="propose")
        found = await self.must(
            lemon_api.FIND_LEMONS, lemon_api.LemonsIn(clusters=self.clusters), summary="who came back with trouble"
        )
        self.lemons = found.lemons
        out = {(one.cluster, node) for one in self.clusters for node in one.out}
        fresh: list[Lemon] = []
        for lemon in found.lemons:
            place = (lemon.cluster, lemon.node)
            if lemon.subject in found.answered:
                self.tell(f"{lemon.subject}: {found.answered[lemon.subject]}; no strike since")
            elif place in out:
                self.tell(f"{lemon.text}; {lemon.node} is out already")
            elif place not in [(other.cluster, other.node) for other in fresh]:
                fresh.append(lemon)
        self.facts["Lemons"] = str(len(self.lemons))
        self.proposed = self._within_limits(fresh)
        self.result = f"{len(self.lemons)} lemons, nothing to propose" if self.lemons else "no lemons"

    def _within_limits(self, fresh: list[Lemon]) -> tuple[Lemon, ...]:
        """As many of a cluster as may be out beside those that are; the others wait for another day."""
        proposed: list[Lemon] = []
        for one in self.clusters:
            own = [lemon for lemon in fresh if lemon.cluster == one.cluster]
            room = max(one.limit - one.ours, 0)
            proposed += own[:room]
            if own:
                waiting = f", {len(own) - room} more for another day" if len(own) > room else ""
                text = f"{one.cluster}: at most {one.limit} of {len(one.nodes)} nodes out, {one.ours} are{waiting}"
                self.limits = (*self.limits, text)
                self.tell(text)
        return tuple(proposed)

    async def propose(self) -> None:
        """One question for all of them. The mode of `isolate` may forbid it; not even `auto` skips it."""
        if not self.proposed:
            return
        names = ", ".join(f"{lemon.cluster}/{lemon.node}" for lemon in self.proposed)
        policy = await self.policy(self.proposed[0].cluster)
        if policy.mode(Step.ISOLATE) is StepMode.OBSERVE:
            for lemon in self.proposed:
                self.tell(f"observe only, not proposed: {lemon.text}")
            self.result = f"observe only, not proposed: {names}"
            return
        outcome = await self.ask(
            title=f"Quarantine {names}",
            why=f"Trouble came back there over four weeks, more than the fleet has. {'; '.join(self.limits)}.",
            steps=tuple(
                f"{lemon.cluster}/{lemon.node}: isolate, let its jobs leave, keep it isolated for an intensive check"
                for lemon in self.proposed
            ),
            evidence=self.evidence_lines(),
            cluster=self.proposed[0].cluster,
        )
        said = f"{outcome.by} answered {outcome.choice}"
        if outcome.choice is Choice.APPROVE:
            for lemon in self.proposed:
                await self.must(api.REQUEST_HEAL, _quarantine(lemon, outcome.by), summary=f"quarantine {lemon.node}")
        await self.must(
            lemon_api.REMEMBER_ANSWER,
            lemon_api.AnswerIn(lemons=self.proposed, answer=said),
            summary="remember the answer",
        )
        self.result = f"{names}: {said}"

    def evidence_lines(self) -> tuple[str, ...]:
        """Why each is a lemon."""
        return tuple(lemon.text for lemon in self.proposed)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """The search as `runbook describe` shows it."""
        return self.view_with(
            next=self.next,
            op=self.op,
            result=self.result,
        )


def _quarantine(lemon: Lemon, by: str) -> api.HealRequest:
    """The node's own runbook isolates it, under its lease and modes, and gives it to a person: no reboot cures it."""
    verdict = Verdict(
        fault=FaultClass.HARDWARE,
        culprit=Culprit(node=lemon.node, gpu=lemon.gpu),
        rule="lemon",
        title=f"{lemon.subject} comes back with trouble ({lemon.score:g} points over four weeks)",
        first_rung="person",
        confidence=0.7,
        evidence=(lemon.newest,),
        evidence_text=(lemon.text,),
    )
    return api.HealRequest(cluster=lemon.cluster, node=lemon.node, verdict=verdict, by=by)

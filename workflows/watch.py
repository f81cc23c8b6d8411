"""`WatchCluster`: one heartbeating activity turns the cluster's changes into signals; all evidence is routed here.

The activity starts with the full picture each time, so whatever was lost (a worker, the cluster's controller,
this runbook) is made up for at the next start.
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, wave_api
    from fleet.faults.evidence import Evidence, FaultClass
    from fleet.runbooks import VIEW, EvidenceBatch, Runbook, Signal, View, WatchInput
    from fleet.waves import WaveOrder, WavePart, folded
    from workflows import attributes
    from workflows.base import Book, StepFailed

WATCH_SECONDS = 3600.0
"""How long one watching activity lasts before it starts again with the full picture."""
REMEMBERED = 2000
"""Evidence keys remembered against repeats."""


@workflow.defn(name=Runbook.WATCH)
class WatchCluster(Book):
    """One per cluster, for ever."""

    kind = Runbook.WATCH

    @workflow.init
    def __init__(self, inp: WatchInput) -> None:
        super().__init__()
        self.inp = inp
        self.routed = inp.routed
        self.inbox: list[Evidence] = list(inp.inbox)
        self.seen: dict[str, None] = dict.fromkeys(inp.seen)
        self.headline = f"Watch over {inp.cluster}"

    @workflow.run
    async def run(self, inp: WatchInput) -> None:
        self.at("watching", waits="changes")
        watching = asyncio.create_task(self._watch())
        while True:
            await workflow.wait_condition(
                lambda: bool(self.inbox) or watching.done() or workflow.info().is_continue_as_new_suggested()
            )
            if watching.done():
                watching.result()
            while self.inbox:
                batch, self.inbox = tuple(self.inbox), []
                await self._route(batch)
            if workflow.info().is_continue_as_new_suggested():
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(
                    WatchInput(
                        cluster=self.inp.cluster,
                        routed=self.routed,
                        inbox=tuple(self.inbox),
                        seen=tuple(self.seen),
                    )
                )

    @workflow.signal(name=Signal.EVIDENCE)
    def evidence(self, batch: EvidenceBatch) -> None:
        """Evidence in its one form, from the watchers themselves, a person or a node agent."""
        waiting = {e.key for e in self.inbox}
        for item in batch.evidence:
            if item.key not in self.seen and item.key not in waiting:
                waiting.add(item.key)
                self.inbox.append(item)

    @workflow.query(name=VIEW)
    def view(self) -> View:
        """What it does and what it routed."""
        return self.view_with(
            result=f"{self.routed} pieces of evidence routed",
        )

    async def _watch(self) -> None:
        wait = 5.0
        while True:
            try:
                await self.act(
                    api.WATCH,
                    api.WatchIn(cluster=self.inp.cluster, seconds=WATCH_SECONDS),
                    cluster=self.inp.cluster,
                    summary=f"watch {self.inp.cluster}",
                )
            except StepFailed as failed:
                self.tell(f"the watch was lost and starts again: {failed}")
                await workflow.sleep(wait, summary="before the watch starts again")
                wait = min(wait * 2, 60.0)

    async def _route(self, batch: tuple[Evidence, ...]) -> None:
        """Records everything, then sends it on, subject by subject; what fails for one holds up no other."""
        nodes = sorted({e.node for e in batch if e.node})
        if len(nodes) > 1:
            at_once = (await self.policy(self.inp.cluster)).wave_from
            if len(nodes) >= at_once:
                batch = await self._route_wave(batch, tuple(nodes), at_once)
                nodes = sorted({e.node for e in batch if e.node})
        parts = [tuple(e for e in batch if e.node == node) for node in nodes]
        parts.append(tuple(e for e in batch if not e.node))
        for part in filter(None, parts):
            try:
                routed = await self._route_part(part)
                self.routed += len(routed)
                self._remember(routed)
            except StepFailed as failed:
                if failed.refused:
                    self.tell(f"evidence dropped, nothing was done about it: {failed}")
                    continue
                self.tell(f"evidence could not be routed: {failed}")
                self.inbox = [*part, *self.inbox]
                await workflow.sleep(10, summary="before the evidence is routed again")

    def _remember(self, routed: tuple[Evidence, ...]) -> None:
        self.seen |= {e.key: None for e in routed}
        while len(self.seen) > REMEMBERED:
            self.seen.pop(next(iter(self.seen)))

    async def _route_part(self, part: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        """All about one node, or all about jobs. Returns what was new, as it was routed."""
        await self.act(
            api.RECORD_EVIDENCE,
            api.EvidenceIn(cluster=self.inp.cluster, evidence=part),
            summary=f"record {len(part)} pieces of evidence",
        )
        if part[0].node:
            return await self._route_node(part[0].node, part)
        for job in sorted({e.job for e in part if e.job}):
            await self.act(
                api.TELL_JOB,
                api.TellJob(job=job, signal=Signal.EVIDENCE, evidence=tuple(e for e in part if e.job == job)),
                summary=f"tell {job}",
            )
        return part

    async def _route_node(self, node: str, batch: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        """Judges what was seen on a node: hardware starts its repair, which tells the jobs on it; anything else
        goes to the jobs on it directly. An undated line counts again after a boot: it was repaired since."""
        facts = await self.act(
            api.READ_NODE,
            api.OnNode(cluster=self.inp.cluster, node=node),
            cluster=self.inp.cluster,
            summary=f"boot of {node}",
        )
        batch = tuple(e if e.boot else e.model_copy(update={"boot": facts.boot}) for e in batch)
        batch = tuple(e for e in batch if e.key not in self.seen)
        if not batch:
            self.tell(f"{node}: known already since its boot")
            return ()
        verdict = await self.act(
            api.JUDGE, api.JudgeIn(cluster=self.inp.cluster, evidence=batch, node=node), summary=f"judge {node}"
        )
        self.tell(f"{node}: {verdict.title} ({verdict.fault})")
        workflow.upsert_search_attributes([attributes.FAULT.value_set(str(verdict.fault))])
        if verdict.fault is FaultClass.HARDWARE:
            await self.act(
                api.REQUEST_HEAL,
                api.HealRequest(
                    cluster=self.inp.cluster,
                    node=node,
                    evidence=batch,
                    verdict=verdict,
                    by=workflow.info().workflow_id,
                ),
                summary=f"ask for a repair of {node}",
            )
        if verdict.fault is FaultClass.INFORMATIONAL:
            return batch
        holders = await self.act(
            api.READ_HOLDERS,
            api.OnNode(cluster=self.inp.cluster, node=node),
            cluster=self.inp.cluster,
            summary=f"who holds {node}",
        )
        for holder in holders.jobs:
            if holder.name:
                await self.act(
                    api.TELL_JOB,
                    api.TellJob(
                        job=holder.name,
                        signal=Signal.EVIDENCE,
                        cluster=self.inp.cluster,
                        node=node,
                        evidence=batch,
                    ),
                    summary=f"tell {holder.name}",
                )
        return batch

    # -- many nodes at once

    async def _route_wave(
        self, batch: tuple[Evidence, ...], nodes: tuple[str, ...], at_once: int
    ) -> tuple[Evidence, ...]:
        """Judges many nodes in a few steps; those with a hardware fault go to the guard as one wave. Returns what is
        to be routed node by node."""
        try:
            seen = await self.act(
                wave_api.READ_NODES,
                wave_api.NodesIn(cluster=self.inp.cluster, nodes=nodes),
                cluster=self.inp.cluster,
                summary=f"boots of {len(nodes)} nodes",
            )
            found = self._sorted_out(batch, seen)
            sick = await self._sick_of(found)
            count = sum(map(len, sick.values()))
            if count < at_once:
                return batch
            await self.act(
                wave_api.REQUEST_WAVE,
                wave_api.WaveIn(
                    cluster=self.inp.cluster,
                    order=WaveOrder(
                        parts=tuple(WavePart(why=why, nodes=tuple(of)) for why, of in sick.items()),
                        by=workflow.info().workflow_id,
                    ),
                ),
                summary=f"a wave of {count} nodes",
            )
            workflow.upsert_search_attributes([attributes.FAULT.value_set(str(FaultClass.HARDWARE))])
            chosen = {node for of in sick.values() for node in of}
            routed = tuple(e for e in found if e.node in chosen)
            self.tell(f"{count} nodes at once: handed to the guard as one wave")
            await self._tell_jobs_of(routed, seen)
        except StepFailed as failed:
            self.tell(f"many nodes at once could not be routed together: {failed}")
            if failed.refused:
                return batch
            self.inbox = [*batch, *self.inbox]
            await workflow.sleep(10, summary="before the evidence is routed again")
            return ()
        self.routed += len(routed)
        self._remember(routed)
        return tuple(e for e in batch if not e.node) + tuple(e for e in found if e.node not in chosen)

    def _sorted_out(self, batch: tuple[Evidence, ...], seen: wave_api.NodesSeen) -> tuple[Evidence, ...]:
        """What is new about nodes of the cluster, with their present boot. A node whose evidence is all of an earlier
        boot was mended since, unless it is out."""
        about = [e for e in batch if e.node and e.node in seen.boots]
        if strange := sorted({e.node for e in batch if e.node and e.node not in seen.boots}):
            self.tell(f"evidence dropped, not in the cluster: {folded(strange)[:300]}")
        current = {e.node for e in about if e.boot in {None, "", seen.boots[e.node or ""]}} | set(seen.out)
        if void := sorted({e.node for e in about if e.node not in current and e.node}):
            self.tell(f"evidence of an earlier boot, nothing to repair: {folded(void)[:300]}")
        stamped = (
            e if e.boot else e.model_copy(update={"boot": seen.boots[e.node or ""]})
            for e in about
            if e.node in current
        )
        return tuple(e for e in stamped if e.key not in self.seen)

    async def _sick_of(self, found: tuple[Evidence, ...]) -> dict[str, list[str]]:
        """What is wrong, in words -> the nodes."""
        sick: dict[str, list[str]] = {}
        for piece in _pieces(found):
            judged = await self.act(
                wave_api.JUDGE_NODES,
                wave_api.JudgeNodes(cluster=self.inp.cluster, evidence=piece),
                summary=f"judge {len(piece)} pieces of evidence",
            )
            for one in judged.nodes:
                if one.fault is FaultClass.HARDWARE:
                    sick.setdefault(one.why, []).append(one.node)
        return sick

    async def _tell_jobs_of(self, routed: tuple[Evidence, ...], seen: wave_api.NodesSeen) -> None:
        """Each supervised job on the nodes learns of its own ones and decides by its own ladder, once the wave is
        isolated: before, its next attempt could start on another sick node."""
        if seen.jobs:
            nodes = tuple(dict.fromkeys(e.node for e in routed if e.node))
            await self.act(
                wave_api.WAIT_ISOLATED,
                wave_api.NodesIn(cluster=self.inp.cluster, nodes=nodes),
                cluster=self.inp.cluster,
                summary="the wave is isolated, then its jobs move",
            )
        for job, nodes in sorted(seen.jobs.items()):
            told = tuple(e for e in routed if e.node in nodes)[: wave_api.PIECES]
            if told:
                await self.act(
                    api.TELL_JOB,
                    api.TellJob(job=job, signal=Signal.EVIDENCE, cluster=self.inp.cluster, evidence=told),
                    summary=f"tell {job}",
                )


def _pieces(found: tuple[Evidence, ...]) -> list[tuple[Evidence, ...]]:
    """Small enough for one payload; all about one node stays together, as far as that goes."""
    by_node: dict[str | None, list[Evidence]] = {}
    for e in found:
        by_node.setdefault(e.node, []).append(e)
    pieces: list[list[Evidence]] = [[]]
    for told in by_node.values():
        kept = told[-wave_api.PIECES :]
        if len(pieces[-1]) + len(kept) > wave_api.PIECES:
            pieces.append([])
        pieces[-1] += kept
    return [tuple(piece) for piece in pieces if piece]

"""Bulk steps of a wave: many nodes of one cluster in one activity, instead of one runbook for each at once."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from temporalio.common import WorkflowIDConflictPolicy

from activities import api, wave_api
from activities.backends.port import NodeNotes
from activities.control import start_heal
from activities.judging import HISTORY_SECONDS
from activities.registry import implements, remember
from activities.runtime import Owner
from activities.search import typed
from fleet import attributes
from fleet.errors import TemporaryError
from fleet.faults.classify import classify
from fleet.faults.common_causes import sample
from fleet.faults.evidence import Evidence, Verdict
from fleet.faults.reading import where
from fleet.identity import RUNBOOKS_QUEUE, fleet_name, guard_workflow_id, node_workflow_id
from fleet.runbooks import GuardInput, Runbook, Signal
from fleet.strikes import StrikeKind, our_strike
from fleet.waves import wave_op

BEAT_EVERY = 25
"""Nodes between two notes of how far a bulk step is: about a tenth of a second on Kubernetes."""
EVIDENCE_MOST = 50
"""Newest pieces of evidence that a node's runbook is started with; the rest stays in the store."""

STANDSTILL = 5.0
"""Seconds without another isolated node after which no more are waited for: a batch begins within one."""
LOOK_EVERY = 0.3
"""Seconds between two looks at the watched picture."""


class WaveNodeActivities(Owner):
    """On the cluster's queue."""

    @implements(wave_api.READ_NODES)
    async def read_nodes(self, arg: wave_api.NodesIn) -> wave_api.NodesSeen:
        """One live reading for all of them."""
        backend = self.runtime.backend(arg.cluster)
        wanted = frozenset(arg.nodes)
        nodes = [facts for facts in await backend.nodes(max_age=0) if facts.node in wanted or not wanted]
        jobs: dict[str, tuple[str, ...]] = {}
        if any(facts.jobs for facts in nodes):
            held = {native_id for facts in nodes for native_id in facts.jobs}
            for job in await backend.jobs():
                if job.native_id in held and (job.tokens.supervise or job.key or job.adopted):
                    jobs[fleet_name(job)] = tuple(f.node for f in nodes if job.native_id in f.jobs)
        return wave_api.NodesSeen(
            boots={facts.node: facts.boot for facts in nodes},
            out=tuple(facts.node for facts in nodes if facts.drained or not facts.responding),
            jobs=jobs,
        )

    @implements(wave_api.READ_BLAST)
    async def read_blast(self, arg: wave_api.BlastIn) -> wave_api.Blast:
        """Live: it decides how many more are taken out."""
        nodes = await self.runtime.backend(arg.cluster).nodes(max_age=0)
        policy = self.runtime.policy()
        isolated = {facts.node for facts in nodes if facts.isolated_by_us}
        return wave_api.Blast(
            nodes=len(nodes),
            isolated=len(isolated | set(arg.out)),
            limit=policy.nodes_isolated(len(nodes)),
            nodes_out=policy.nodes_out(len(nodes)),
        )

    @implements(wave_api.ISOLATE_NODES)
    async def isolate_nodes(self, arg: wave_api.IsolateNodes) -> wave_api.NodesIsolated:
        """A freeze stops it between two nodes; tried again it finds by the marks what was done."""

        async def go_on(done: int) -> None:
            await self.check_freeze(arg.cluster)
            if done % BEAT_EVERY == 0:
                remember(done)

        ops, now = _ops(arg), time.time()
        found = await self.runtime.backend(arg.cluster).isolate_many(ops, arg.text, go_on)
        taken = [our_strike(StrikeKind.TAKEN_OUT, arg.cluster, node, ops[node], now) for node in found.marked]
        await self.runtime.note(taken)
        return wave_api.NodesIsolated(marked=found.marked, left=found.left)

    @implements(wave_api.WAIT_ISOLATED)
    async def wait_isolated(self, arg: wave_api.NodesIn) -> api.Nothing:
        """Waits until none of these nodes takes new work, or no more of them go out: some may be asked about."""
        backend, wanted = self.runtime.backend(arg.cluster), frozenset(arg.nodes)
        fewest, since = len(wanted), time.monotonic()
        while time.monotonic() - since < STANDSTILL:
            with contextlib.suppress(TemporaryError):
                seen = await backend.nodes()
                left = sum(not facts.drained for facts in seen if facts.node in wanted)
                if not left:
                    break
                if left < fewest:
                    fewest, since = left, time.monotonic()
            await asyncio.sleep(LOOK_EVERY)
        return api.Nothing()

    @implements(wave_api.TELL_NODES)
    async def tell_nodes(self, arg: wave_api.IsolateNodes) -> api.Nothing:
        """Where the cluster has a place for it besides the mark itself."""
        backend = self.runtime.backend(arg.cluster)
        if isinstance(backend, NodeNotes):
            await backend.tell_isolated(_ops(arg), arg.text)
        return api.Nothing()


def _ops(arg: wave_api.IsolateNodes) -> dict[str, str]:
    return {node: wave_op(arg.cluster, node, arg.tag) for node in arg.nodes}


class WaveControlActivities(Owner):
    """On the queue `runbooks`."""

    @implements(wave_api.JUDGE_NODES)
    async def judge_nodes(self, arg: wave_api.JudgeNodes) -> wave_api.NodesJudged:
        """`judge` for each node. Evidence and verdicts are stored for the nodes' own runbooks."""
        now, store = time.time(), self.runtime.store
        nodes = tuple(dict.fromkeys(e.node for e in arg.evidence if e.node))
        await store.add_evidence(arg.evidence)
        history = await store.evidence_of_nodes(arg.cluster, nodes, now - HISTORY_SECONDS)
        tables, around = self.runtime.tables(), sample(arg.evidence)
        verdicts: dict[str, Verdict] = {}
        judged: list[wave_api.Judged] = []
        for node in nodes:
            told = [e for e in arg.evidence if e.node == node]
            keys = {e.key for e in told}
            before = [e for e in history.get(node, ()) if e.key not in keys]
            verdict = verdicts[node] = classify(told, history=before, around=around, tables=tables, now=now)
            judged.append(wave_api.Judged(node=node, fault=verdict.fault, why=_placeless(verdict, told)))
        await store.save_verdicts({node_workflow_id(arg.cluster, node): v for node, v in verdicts.items()})
        return wave_api.NodesJudged(nodes=tuple(judged))

    @implements(wave_api.REQUEST_WAVE)
    async def request_wave(self, arg: wave_api.WaveIn) -> api.Nothing:
        """One signal to the cluster's guard, which is started when it does not run."""
        await self.runtime.client.start_workflow(
            Runbook.GUARD,
            GuardInput(scope=arg.cluster),
            id=guard_workflow_id(arg.cluster),
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=Signal.WAVE,
            start_signal_args=[arg.order],
            static_summary=f"guard of {arg.cluster}",
            search_attributes=typed({attributes.STEP: "starting"}),
        )
        return api.Nothing()

    @implements(wave_api.REQUEST_HEALS)
    async def request_heals(self, arg: wave_api.HealNodes) -> api.Nothing:
        """Starts each node's runbook or tells the one that runs; done twice it only tells it again."""
        store = self.runtime.store
        found = await store.evidence_of_nodes(arg.cluster, arg.nodes, time.time() - HISTORY_SECONDS)
        for node in arg.nodes:
            evidence: Sequence[Evidence] = found.get(node, ())
            verdict = await store.last_verdict(node_workflow_id(arg.cluster, node))
            request = api.HealRequest(
                cluster=arg.cluster, node=node, evidence=tuple(evidence[-EVIDENCE_MOST:]), verdict=verdict, by=arg.by
            )
            await start_heal(self.runtime.client, request)
        return api.Nothing()


def _placeless(verdict: Verdict, evidence: Sequence[Evidence]) -> str:
    """The verdict's title without node and GPU: equal for all nodes with the same fault."""
    title = verdict.title
    for place in filter(None, map(where, evidence)):
        title = title.replace(place, "", 1)
    return title or verdict.rule

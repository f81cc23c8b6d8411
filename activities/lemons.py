"""What `FindLemons` reads and remembers. None of it changes a cluster."""

import time
from typing import TypeVar

from activities import api, lemon_api
from activities.registry import implements
from activities.runtime import Owner
from activities.store import Ages
from fleet.faults.evidence import Culprit, FaultClass, Verdict
from fleet.faults.tables import Tables
from fleet.lemons import WINDOW, Lemon, find_lemons
from fleet.policy import Policy
from fleet.strikes import Inventory, Run, Strike

Noted = TypeVar("Noted", Strike, Run, Inventory)

HARMLESS = frozenset({FaultClass.USER, FaultClass.INFORMATIONAL})
"""XIDs of these classes speak for a program, or for nothing."""


class LemonNodeActivities(Owner):
    """Runs on the cluster's queue, next to the cluster."""

    @implements(lemon_api.LIST_NODES)
    async def list_nodes(self, arg: api.PolicyIn) -> lemon_api.ClusterNodes:
        """Live."""
        nodes = await self.runtime.backend(arg.cluster).nodes(max_age=0)
        return lemon_api.ClusterNodes(
            cluster=arg.cluster,
            nodes=tuple(facts.node for facts in nodes),
            gpus=sum(facts.gpus_expected for facts in nodes),
            out=tuple(facts.node for facts in nodes if facts.drained or not facts.responding),
            limit=self.runtime.policy().nodes_out(len(nodes)),
            ours=sum(facts.isolated_by_us for facts in nodes),
        )


class LemonControlActivities(Owner):
    """Runs on the queue `runbooks`."""

    @implements(lemon_api.READ_SCOPE)
    async def read_scope(self, _: api.Nothing) -> lemon_api.Scope:
        """The policy's clusters that own their nodes."""
        policy = self.runtime.policy()
        return lemon_api.Scope(clusters=tuple(name for name in policy.clusters if policy.owner_of(name) == name))

    @implements(lemon_api.TIDY_HISTORY)
    async def tidy_history(self, _: api.Nothing) -> lemon_api.Forgotten:
        """Forgets what is older than the policy keeps it, and is about no open runbook.

        A runbook that opens meanwhile needs nothing so old: a job's spec is saved anew when it is adopted.
        """
        keep = self.runtime.policy().keep
        running = {run.id async for run in self.runtime.client.list_workflows("ExecutionStatus = 'Running'")}
        ages = Ages(evidence=keep.evidence, reports=keep.reports, specs=keep.specs, record=keep.record)
        return lemon_api.Forgotten(rows=await self.runtime.store.forget(ages, running))

    @implements(lemon_api.FIND_LEMONS)
    async def find(self, arg: lemon_api.LemonsIn) -> lemon_api.LemonsOut:
        """The record of four weeks, against today's fleet."""
        now, policy = time.time(), self.runtime.policy()
        record = await self.runtime.store.record(now - WINDOW)
        lemons = find_lemons(
            [_owned(s, policy) for s in record.strikes],
            [_owned(r, policy) for r in record.runs],
            [_owned(i, policy) for i in record.inventories],
            nodes=[(one.cluster, node) for one in arg.clusters for node in one.nodes],
            gpus=sum(one.gpus for one in arg.clusters),
            now=now,
            quantile=policy.limits.lemon_quantile / 100,
            harmless=harmless(self.runtime.tables()),
        )
        answered = {lemon.subject: said for lemon in lemons if (said := await self._answer_to(lemon))}
        return lemon_api.LemonsOut(lemons=lemons, answered=answered)

    async def _answer_to(self, lemon: Lemon) -> str:
        """What a person said about just this record; empty when nobody did, or it has grown since."""
        said = await self.runtime.store.last_verdict(_subject(lemon))
        return said.title if said is not None and said.evidence == (lemon.newest,) else ""

    @implements(lemon_api.REMEMBER_ANSWER)
    async def remember_answer(self, arg: lemon_api.AnswerIn) -> api.Nothing:
        """As a verdict on each lemon, with the strike up to which its record was read."""
        await self.runtime.store.save_verdicts(
            {
                _subject(lemon): Verdict(
                    fault=FaultClass.INFORMATIONAL,
                    culprit=Culprit(node=lemon.node, gpu=lemon.gpu),
                    rule="lemon-answered",
                    title=arg.answer,
                    evidence=(lemon.newest,),
                    evidence_text=(lemon.text,),
                )
                for lemon in arg.lemons
            }
        )
        return api.Nothing()


def harmless(tables: Tables) -> frozenset[str]:
    """XIDs that are not counted against hardware, as evidence spells them."""
    return frozenset(str(row.xid) for row in tables.xid.values() if row.fault in HARMLESS)


def _owned(value: Noted, policy: Policy) -> Noted:
    """A Slurm node that is the twin of a Kubernetes node is one machine with it."""
    owner = policy.owner_of(value.cluster)
    return value if owner == value.cluster else value.model_copy(update={"cluster": owner})


def _subject(lemon: Lemon) -> str:
    return f"lemon/{lemon.subject}"

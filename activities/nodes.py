"""Effects on nodes, and what the cluster knows about them."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from activities import api
from activities.backends.port import PowerControl
from activities.registry import implements
from activities.runtime import Owner, until
from fleet.errors import PermanentError, RefusedError
from fleet.evacuation import EvacuationState
from fleet.faults.evidence import Evidence, Fact, Kind, Source
from fleet.faults.parse import exit_evidence, parse_job_log
from fleet.faults.tables import load_tables
from fleet.identity import fleet_name, of_slinky
from fleet.model import BOOT_MARGIN, CheckResult, NativeJob, NodeFacts, NodeReceipt, NodeState, is_newer
from fleet.strikes import Inventory, StrikeKind, our_strike

RECENT_BOOT = 3600.0
"""Seconds after a boot in which a judgement is told of it."""
ASK_AGAIN = 10.0
"""Seconds after which a node that answers, is not rebooting and has its old boot is told again: slurmctld that was
killed lost what it had acknowledged within its last 2 s (measured), and shows an order within 1 s."""


class NodeActivities(Owner):
    """One instance per worker; the backend is chosen by each input's cluster."""

    # -- reads

    @implements(api.READ_NODE)
    async def read_node(self, arg: api.OnNode) -> NodeFacts:
        """Live."""
        return await self.runtime.backend(arg.cluster).node(arg.node)

    @implements(api.READ_HOLDERS)
    async def read_holders(self, arg: api.OnNode) -> api.Holders:
        """Who holds the node, live, with the fleet names of the supervised ones."""
        jobs = await self.runtime.backend(arg.cluster).holders(arg.node)
        return api.Holders(jobs=tuple(_named(j) for j in jobs))

    @implements(api.READ_CLUSTER)
    async def read_cluster(self, arg: api.PolicyIn) -> api.ClusterView:
        """Everything, for a person's list."""
        backend = self.runtime.backend(arg.cluster)
        jobs = tuple(_named(j) for j in await backend.jobs(max_age=0))
        return api.ClusterView(nodes=await backend.nodes(max_age=0), jobs=jobs)

    @implements(api.READ_LIMIT)
    async def read_limit(self, arg: api.PolicyIn) -> api.LimitOut:
        """The policy's limit for the cluster's size today."""
        nodes = await self.runtime.backend(arg.cluster).nodes()
        return api.LimitOut(nodes_out=self.runtime.policy().nodes_out(len(nodes)))

    @implements(api.GATHER)
    async def gather(self, arg: api.Gather) -> api.EvidenceIn:
        """How the attempt ended, what its log says, and how its nodes are."""
        backend = self.runtime.backend(arg.cluster)
        now = time.time()
        native = await backend.job(arg.native_id)
        lines = await backend.log_tail(arg.native_id, 400)
        found = [
            *exit_evidence(native, arg.job, now),
            *parse_job_log(
                own_words(lines, arg.restarts, arg.nodes),
                cluster=arg.cluster,
                job=arg.job,
                seen_at=now,
                attempt=arg.restarts,
                nodes=arg.nodes,
                tables=self.runtime.tables(),
            ),
            *(e for n in await backend.nodes(max_age=0) if n.node in arg.nodes for e in under_job_since(n, now)),
        ]
        if native.restarts > arg.restarts:
            found.append(
                Evidence(
                    source=Source.SCHEDULER,
                    kind=Kind.JOB_REQUEUED,
                    cluster=arg.cluster,
                    job=arg.job,
                    code=native.reason or None,
                    seen_at=now,
                    detail=f"the scheduler requeued it by itself (restart {native.restarts}): {native.reason}",
                )
            )
        return api.EvidenceIn(cluster=arg.cluster, evidence=tuple(found))

    # -- writes

    @implements(api.ISOLATE_NODE)
    async def isolate(self, arg: api.OnNode) -> NodeFacts:
        """No new work; a foreign drain is left as it is."""
        facts = await self.runtime.backend(arg.cluster).isolate(arg.node, arg.op, arg.text)
        if facts.op == arg.op:
            strike = our_strike(StrikeKind.TAKEN_OUT, arg.cluster, arg.node, arg.op, time.time())
            await self.runtime.note((strike,))
        return facts

    @implements(api.EVACUATE_NODE)
    async def evacuate(self, arg: api.Evacuate) -> EvacuationState:
        """Asks what is not a supervised job to leave, and says who stays and why. Whether that goes for other
        people's work, too, is what the policy says now: a drain may take hours."""
        order = arg.order.model_copy(update={"others": self.runtime.policy().evicts_others(arg.cluster)})
        return await self.runtime.backend(arg.cluster).evacuate(arg.node, order)

    @implements(api.RELEASE_NODE)
    async def release(self, arg: api.OnNode) -> NodeFacts:
        """Takes back what carries the op's mark."""
        return await self.runtime.backend(arg.cluster).release(arg.node, arg.op)

    @implements(api.POWER_OFF)
    async def power_off(self, arg: api.OnNode) -> NodeReceipt:
        """Off and read back as off."""
        return await self._power(arg.cluster).power_off(arg.node, arg.op)

    @implements(api.POWER_ON)
    async def power_on(self, arg: api.PowerOn) -> NodeFacts:
        """On, and a boot that is newer than the one before."""
        await self._power(arg.cluster).power_on(arg.node, arg.op)
        return await self._newer_boot(arg)

    @implements(api.REBOOT_NODE)
    async def reboot(self, arg: api.Reboot) -> NodeFacts:
        """Asked once, proven by a newer boot. A second try finds the first one's boot and asks for none; an order
        that the cluster has forgotten is given again."""
        backend = self.runtime.backend(arg.cluster)
        facts = await backend.node(arg.node)
        if not is_newer(facts, arg.boot_before, arg.booted_before):
            await backend.reboot(arg.node, arg.op)
        asked_at = time.monotonic()

        async def ask_again(facts: NodeFacts) -> None:
            nonlocal asked_at
            forgotten = facts.responding and facts.state is not NodeState.REBOOTING
            if forgotten and time.monotonic() - asked_at > ASK_AGAIN:
                await backend.reboot(arg.node, arg.op)  # refused when the mark was forgotten, too
                asked_at = time.monotonic()

        return await self._newer_boot(arg, ask_again)

    @implements(api.CHECK_NODE)
    async def check(self, arg: api.Check) -> CheckResult:
        """Runs the suite where no other work can land, and keeps which GPUs it found: a repair may change them."""
        result = await self.runtime.backend(arg.cluster).run_check(arg.node, arg.op, arg.suite)
        if result.uuids:
            found = Inventory(cluster=arg.cluster, node=arg.node, gpus=result.uuids, at=time.time())
            await self.runtime.store.save_inventory(found)
        return result

    @implements(api.GIVE_BACK_ALL)
    async def give_back_all(self, arg: api.OnNode) -> api.GiveBackOut:
        """Every hold, mark and reservation of ours in the cluster."""
        return api.GiveBackOut(lines=await self.runtime.backend(arg.cluster).give_back_all())

    def _power(self, cluster: str) -> PowerControl:
        backend = self.runtime.backend(cluster)
        if isinstance(backend, PowerControl) and backend.has_power:
            return backend
        raise RefusedError(f"{cluster} has no power hook in the policy (clusters.{cluster}.power)")

    async def _newer_boot(
        self, arg: api.Reboot | api.PowerOn, not_yet: Callable[[NodeFacts], Awaitable[None]] | None = None
    ) -> NodeFacts:
        backend = self.runtime.backend(arg.cluster)
        facts: NodeFacts | None = None

        async def back() -> bool:
            nonlocal facts
            facts = await backend.node(arg.node)
            newer = is_newer(facts, arg.boot_before, arg.booted_before)
            if not newer and not_yet is not None:
                await not_yet(facts)
            return newer and facts.responding and facts.state is not NodeState.REBOOTING

        if await until(back, seconds=arg.timeout, every=0.5, slowest=3.0) and facts is not None:
            return facts
        shown = f"state {facts.state}, boot {facts.boot}" if facts else "never read"
        raise PermanentError(f"{arg.node} did not come back with a newer boot in {arg.timeout:.0f} s ({shown})")


def node_evidence(facts: NodeFacts, now: float) -> tuple[Evidence, ...]:
    """What a node's own state says, stamped with its boot; what we did to it ourselves says nothing."""
    if facts.isolated_by_us or facts.state is NodeState.REBOOTING:
        return ()
    common = {"cluster": facts.cluster, "node": facts.node, "boot": facts.boot or None, "seen_at": now}
    if facts.state is NodeState.DOWN and not facts.responding:
        return (
            Evidence(
                source=Source.SCHEDULER,
                kind=Kind.NODE_DOWN,
                code="down",
                detail=f"{facts.node} does not answer and was given up ({facts.reason or 'no reason'})",
                **common,
            ),
        )
    drained = (
        (Evidence(source=Source.SCHEDULER, kind=Kind.NODE_DRAINED, code="drained", detail=facts.reason, **common),)
        if facts.foreign_drain and not of_slinky(facts.reason)
        else ()
    )
    return (*drained, *condition_evidence(facts, common))


def under_job(facts: NodeFacts, now: float) -> tuple[Evidence, ...]:
    """The same of a node that an attempt ran on. That it was given up while silent says something of the attempt
    also when its own runbook was quicker and has isolated it: an isolation makes no node silent."""
    if facts.isolated_by_us and facts.state is NodeState.DOWN and not facts.responding:
        facts = facts.model_copy(update={"op": None, "drained": False})
    return node_evidence(facts, now)


def under_job_since(facts: NodeFacts, now: float) -> tuple[Evidence, ...]:
    """`under_job`, and when the node booted, where that is not long ago: some faults are then still a start."""
    if not 0.0 < now - facts.booted_at < RECENT_BOOT:
        return under_job(facts, now)
    booted = Evidence(
        source=Source.SCHEDULER,
        kind=Kind.FACT,
        cluster=facts.cluster,
        node=facts.node,
        code=Fact.BOOTED,
        boot=facts.boot or None,
        seen_at=now,
        happened_at=facts.booted_at,
    )
    return (booted, *under_job(facts, now))


def condition_evidence(facts: NodeFacts, common: Mapping[str, Any]) -> tuple[Evidence, ...]:
    """What agents of the node say that is not known to be good: bad, silent, or of a type that nobody mapped. What
    stood before the present boot is void: agents are known to leave it there, and a repair would follow a repair."""
    rows = load_tables().conditions
    return tuple(
        Evidence(
            source=Source.NODE_AGENT,
            kind=Kind.NODE_CONDITION,
            code=f"{one.type}={one.status}",
            detail=one.detail,
            happened_at=one.since or None,
            **common,
        )
        for one in facts.conditions
        if not one.since or one.since >= facts.booted_at - BOOT_MARGIN
        if (row := rows.get(one.type)) is None or one.status not in {"True", "False"} or one.status == row.bad
    )


_GENERATION = re.compile(r"\bgen=\d+\.(\d+)\b")
_SLURM_SAYS = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON (\S+) ")


def own_words(lines: Sequence[str], restarts: int, nodes: Sequence[str]) -> tuple[str, ...]:
    """The lines of one attempt, of a log that several may have written to.

    From the first line that names its generation on, else after the last line of an earlier one. What Slurm writes
    late about a node that the attempt does not hold is of an earlier one, too.
    """
    begin = 0
    for index, line in enumerate(lines):
        found = _GENERATION.search(line)
        if found and int(found[1]) >= restarts:
            begin = index
            break
        if found:
            begin = index + 1
    return tuple(line for line in lines[begin:] if not _of_another_node(line, nodes))


def _of_another_node(line: str, nodes: Sequence[str]) -> bool:
    found = _SLURM_SAYS.search(line)
    return bool(found and nodes and found[1] not in nodes)


def _named(job: NativeJob) -> api.JobOn:
    return api.JobOn(job=job, name=fleet_name(job) if job.supervised else None)

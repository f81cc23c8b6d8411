"""Slurm on Kubernetes: a Slurm node and the Kubernetes node of its name are one machine, acted on from one side."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clients.embedded import ServerInfo
from fleet.identity import of_slinky
from fleet.model import NodeFacts, NodeState, Phase
from fleet.runbooks import Runbook
from tests.clients.stage import XID_79
from tests.kubernetes import lab as k8s
from tests.require import missing
from tests.runbooks_kubernetes.slinky import PREFIX, operator, slurmd_pod
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_slurm.stage import cluster_rows
from tests.slurm import lab as slurm

_numbers = itertools.count(1)
NODES = 3
POWER = """#!/bin/sh
# One machine: both labs switch the node of that name. Off only when both are.
{kubernetes} "$1" gamma "$2" >/tmp/slinky-power.$$ && {slurm} "$1" gamma-n "$2" >>/tmp/slinky-power.$$
code=$?
if grep -q on /tmp/slinky-power.$$; then echo on; else echo off; fi
rm -f /tmp/slinky-power.$$
exit $code
"""


class SlinkyStage(Stage):
    """The Slurm cluster is called `gamma-n`, so that its nodes have the names of those of gamma."""

    slurm: slurm.Cluster
    """Set on the class before a stage is opened."""

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.slurm.name, self.lab.name)

    def other_clusters(self) -> list[str]:
        return [*cluster_rows(self.slurm, power=False), f"    twin: {self.lab.name}"]

    def power(self) -> dict[str, tuple[str, ...]]:
        program = self.folder / "power"
        labs = {"kubernetes": self.lab.place.command(), "slurm": (str(slurm.LAB), "--root", str(self.slurm.root))}
        program.write_text(POWER.format(**{name: " ".join(words) for name, words in labs.items()}))
        program.chmod(0o755)
        return {verb: (str(program), f"power-{verb}", "{node}") for verb in ("off", "on", "status")}

    async def twin(self, node: str) -> NodeFacts:
        return await self.slurm.backend.node(node)

    async def repairs(self) -> list[str]:
        """Ids of all repairs that ever ran, and how often each."""
        query = f"WorkflowType = '{Runbook.HEAL.value}'"
        return [row.id async for row in self.client.list_workflows(query)]


@pytest.fixture
async def slinky(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[SlinkyStage]:
    for name, why in (("kubernetes", k8s.why_not()), ("slurm", slurm.why_not())):
        if why is not None:
            missing(name, why)
    async with (
        k8s.cluster("gamma", nodes=NODES) as gamma,
        slurm.cluster("gamma-n", nodes=NODES, requeue=5, words=("-o", "ReturnToService=2")) as twin,
    ):
        SlinkyStage.slurm = twin
        made = await SlinkyStage.open(temporal_server.address, tmp_path, f"slinky-{next(_numbers)}", gamma)
        assert isinstance(made, SlinkyStage)
        try:
            await gamma.apply(*(slurmd_pod(gamma.node(n)) for n in range(1, NODES + 1)))
            await made.start_worker()
            yield made
        finally:
            await made.close()


async def test_a_fault_seen_by_slurm_is_repaired_once_from_the_kubernetes_side_and_both_sides_are_in_step(
    slinky: SlinkyStage,
) -> None:
    spec = slinky.slurm.training_spec("train", tokens="gpu-runbooks.io/job=train")
    async with operator(slinky.lab, slinky.slurm):
        native_id = await slinky.slurm.person_submit(spec)
        await slinky.trains("train", 1)
        before = await slinky.slurm.backend.job(native_id)
        sick = before.nodes[1]
        boots = (await slinky.backend.node(sick)).boot, (await slinky.twin(sick)).boot

        sent = await slinky.cli("evidence", f"{slinky.slurm.name}/{sick}", "-", stdin=XID_79)
        assert sent.code == 0, sent.err
        drained = await slinky.until(lambda: mirrored(slinky, sick), "the operator has drained the twin")
        assert drained.reason.startswith(f"{PREFIX}gpu-runbooks:"), "the operator's prefix, our reason"
        view = await slinky.trains("train", 2)
        assert await slinky.result(f"node/gamma/{sick}") == "repaired, checked and back at work"

        assert view.ledger is not None
        assert sick not in (await slinky.slurm.backend.job(native_id)).nodes
        assert await slinky.repairs() == [f"node/gamma/{sick}"], "one runbook, so one lease"
        facts, twin = await slinky.backend.node(sick), await slinky.twin(sick)
        assert (facts.boot != boots[0], twin.boot != boots[1]) == (True, True)
        assert (facts.state, facts.op, facts.drained) == (NodeState.UP, None, False)
        assert (twin.state, twin.op, twin.drained) == (NodeState.UP, None, False)
        node = await slinky.lab.get("node", sick)
        assert not [key for key in node["metadata"]["annotations"] if "slinky" in key or "gpu-runbooks" in key]
        assert (await slinky.slurm.backend.job(native_id)).phase is Phase.RUNNING


async def mirrored(slinky: SlinkyStage, node: str) -> NodeFacts | None:
    seen = await slinky.twin(node)
    return seen if seen.drained and of_slinky(seen.reason) else None


async def test_without_the_operator_both_sides_are_isolated_and_given_back_by_us(slinky: SlinkyStage) -> None:
    node, op = slinky.lab.node(1), "opaaaaa"
    isolated = await slinky.backend.isolate(node, op, "XID 79")
    twin = await slinky.twin(node)
    assert (isolated.op, twin.op, twin.drained) == (op, op, True)
    async with operator(slinky.lab, slinky.slurm):
        released = await slinky.backend.release(node, op)
        twin = await slinky.twin(node)
        assert (released.op, released.drained, twin.op, twin.drained) == (None, False, None, False)


async def test_a_drain_by_a_person_on_the_slurm_side_is_a_foreign_one_and_stays(slinky: SlinkyStage) -> None:
    node, op = slinky.lab.node(2), "opbbbbb"
    await slinky.slurm.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fan is loud")
    async with operator(slinky.lab, slinky.slurm):
        seen = await slinky.backend.isolate(node, op, "XID 79")
        assert (seen.foreign_drain, seen.reason) == (True, "fan is loud")
        assert not (await slinky.lab.get("node", node))["spec"].get("unschedulable")
        twin = await slinky.twin(node)
        assert (twin.drained, twin.reason) == (True, "fan is loud")

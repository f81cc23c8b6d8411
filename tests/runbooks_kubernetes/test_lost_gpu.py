"""A Job on real Kubernetes loses a GPU and trains again elsewhere from its last checkpoint; the node comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.model import NodeState, Phase, ReceiptGrade
from tests.clients.stage import XID_79
from tests.meanwhile import meanwhile
from tests.runbooks_kubernetes.stage import Stage


async def test_xid_79_moves_the_job_from_its_last_checkpoint_and_heals_the_node(stage: Stage) -> None:
    native_id = await stage.apply("train")
    await stage.trains("train", 1)
    healthy = await stage.cli("doctor")
    assert "the account may do all that runbooks need" in healthy.out, healthy
    asked = await stage.cli("doctor", "gamma/default/train")
    assert "a batch job that may be requeued" in asked.out, asked
    await stage.held_and_saved(native_id)
    first = await stage.backend.job(native_id)
    sick = first.nodes[1]
    before = await stage.backend.node(sick)
    async with looking(stage, "train") as seen:
        handed_in = await stage.cli("evidence", f"gamma/{sick}", "-", stdin=XID_79)
        assert handed_in.code == 0, handed_in.err
        view = await stage.trains("train", 2)
        running = await stage.backend.job(native_id)
        healed = await stage.result(f"node/gamma/{sick}")
    assert healed == "repaired, checked and back at work"
    assert (running.phase, running.restarts, running.excluded) == (Phase.RUNNING, 1, (sick,))
    assert sick not in running.nodes
    assert running.fingerprint == first.fingerprint
    assert frozenset({0}) in seen
    assert frozenset({1}) in seen
    assert all(len(together) < 2 for together in seen)

    assert view.ledger is not None
    receipt = view.ledger.attempts[0].receipt
    assert receipt is not None
    assert {r.node: r.grade for r in receipt.nodes} == dict.fromkeys(first.nodes, ReceiptGrade.DAEMON_GONE)
    resumed = (await stage.backend.progress(native_id, 1)).resumed_from
    assert resumed is not None
    assert (stage.lab.checkpoints("train") / f"step_{resumed:08d}.g0.0" / "COMPLETE").exists()

    after = await stage.backend.node(sick)
    assert after.boot != before.boot
    assert (after.state, after.drained, after.op, after.gpus) == (NodeState.UP, False, None, 8)
    told = await stage.lab.kubectl("describe", "node", sick)
    assert "gpu-runbooks:" in told
    taints = (await stage.lab.get("node", sick))["spec"].get("taints", [])
    assert not [t for t in taints if "gpu-runbooks" in t["key"]]


@asynccontextmanager
async def looking(stage: Stage, job: str) -> AsyncIterator[set[frozenset[int]]]:
    """The attempts whose ranks were alive together, looked at all the time until the body has ended. Never more ranks
    than one attempt has: two."""
    seen: set[frozenset[int]] = set()
    crowds: list[dict[int, int]] = []

    async def look() -> None:
        alive = await asyncio.to_thread(stage.attempts_alive, job)
        seen.add(frozenset(alive))
        crowds.extend([alive] if sum(alive.values()) > 2 else [])

    async with meanwhile(look, 0.2):
        yield seen
    assert not crowds, f"attempt -> ranks that were alive: {crowds}"

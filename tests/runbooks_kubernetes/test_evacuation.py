"""A sick node with other people's pods on it: named, waited for, escalated, and nobody is forced in silence."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activities.backends.kubernetes.marks import OUT_TAINT
from fleet.model import NodeState
from fleet.people import Choice
from tests.clients.stage import XID_79
from tests.kubernetes.strangers import HOLD, agent, budget, loner, place, pods_of, service
from tests.meanwhile import meanwhile
from tests.runbooks_kubernetes.stage import Stage

BACK = "repaired, checked and back at work"


async def test_who_cannot_leave_is_named_waited_for_and_forced_only_at_a_persons_word(stage: Stage) -> None:
    node = stage.lab.node(1)
    stage.write_policy(drain_deadline="6s", question_expiry="5s")
    await place(stage.lab, service("plain", node), service("guarded", node), budget("guarded"), agent("watcher"))
    await place(stage.lab, service("kept", node, finalizers=(HOLD,)), loner("notebook", node))
    before = {app: await uid_on(stage, app, node) for app in ("plain", "guarded", "watcher", "kept", "notebook")}
    boot = await stage.lab.boot_id(node)
    assert (await stage.cli("evidence", f"gamma/{node}", "-", stdin=XID_79)).code == 0

    first = await stage.question(f"node/gamma/{node}")
    shown = "\n".join(first.evidence)
    assert "disruption budget guarded-stays needs 1 healthy pods" in shown
    assert "ReplicaSet guarded-" in shown
    assert "pod/default/notebook (no controller): no controller would bring it back" in shown
    assert f"the finalizer {HOLD} keeps it" in shown
    assert not [line for line in first.evidence if "watcher" in line or "plain" in line]
    story = "\n".join((await stage.view(f"node/gamma/{node}")).story)
    assert "stay with the node: pod/default/watcher-" in story

    second = await stage.until(lambda: another(stage, node, first.id), "it asks again, for nobody answered")
    (guarded,), (notebook,) = await pods_of(stage.lab, "guarded"), await pods_of(stage.lab, "notebook")
    for pod, app in ((guarded, "guarded"), (notebook, "notebook")):
        assert (pod["metadata"]["uid"], pod["metadata"].get("deletionTimestamp")) == (before[app], None)
    assert before["plain"] not in {p["metadata"]["uid"] for p in await pods_of(stage.lab, "plain")}
    assert await stage.lab.boot_id(node) == boot

    stage.write_policy(drain_deadline="6s")
    third = await stage.until(lambda: another(stage, node, second.id), "it asks with time enough to answer")
    forced = "\n".join(third.plan.steps)
    assert all(name in forced for name in ("pod/default/guarded-", "pod/default/notebook", "pod/default/kept-"))
    await stage.answer(third, Choice.APPROVE)
    assert await stage.result(f"node/gamma/{node}") == BACK
    assert await stage.lab.boot_id(node) != boot
    (again,) = await pods_of(stage.lab, "guarded")
    assert (again["metadata"]["uid"] != before["guarded"], again["spec"]["nodeName"] != node) == (True, True)
    assert await pods_of(stage.lab, "notebook") == []
    (kept,) = await pods_of(stage.lab, "kept", node)
    assert (kept["metadata"]["uid"], kept["metadata"]["finalizers"]) == (before["kept"], [HOLD])
    assert await uid_on(stage, "watcher", node) == before["watcher"]


async def another(stage: Stage, node: str, than: str) -> Any:
    question = await stage.question(f"node/gamma/{node}")
    return question if question.id != than else None


async def uid_on(stage: Stage, app: str, node: str) -> str:
    (pod,) = await pods_of(stage.lab, app, node)
    return str(pod["metadata"]["uid"])


async def test_a_pod_that_hangs_on_a_frozen_node_is_let_go_once_its_power_reads_off_and_not_before(
    stage: Stage,
) -> None:
    """PC-K04, on a Job that nobody supervises."""
    await stage.lab.apply(stage.lab.training_job("theirs", backoffLimit=3))
    await stage.until(lambda: stage.lab.ranks_alive("theirs"), "it trains")
    await stage.until(lambda: both(stage), "both ranks run")
    pods = await stage.lab.pods("theirs")
    sick, name = pods[1]["spec"]["nodeName"], pods[1]["metadata"]["name"]
    uid = pods[1]["metadata"]["uid"]
    await place(stage.lab, service("web", sick))
    await stage.lab.lab("node-freeze", sick)
    await stage.lab.kubectl("delete", "pod", name, "--wait=false")
    async with looking(stage, sick) as seen:
        assert (await stage.cli("evidence", f"gamma/{sick}", "-", stdin=XID_79)).code == 0
        question = await stage.question(f"node/gamma/{sick}")
        assert "under work that is not ours" in question.plan.title
        assert "job/default/theirs" in question.why
        hanging = await stage.lab.get("pod", name)
        assert (hanging["metadata"]["uid"], bool(hanging["metadata"].get("deletionTimestamp"))) == (uid, True)
        assert await stage.lab.ranks_alive("theirs") == 2
        await stage.answer(question, Choice.APPROVE)
        assert await stage.result(f"node/gamma/{sick}") == BACK
        await stage.until(lambda: both(stage), "its own controller has made it whole again")
    assert uid not in {p["metadata"]["uid"] for p in await stage.lab.pods("theirs")}
    assert max(ranks for ranks, *_ in seen) == 2
    assert (True, "off") in {(tainted, power) for _, tainted, power in seen}
    assert (True, "on") not in {(tainted, power) for _, tainted, power in seen}
    facts = await stage.backend.node(sick)
    assert (facts.state, facts.op) == (NodeState.UP, None)
    assert not await tainted(stage, sick)
    (web,) = [p for p in await pods_of(stage.lab, "web") if not p["metadata"].get("deletionTimestamp")]
    assert web["spec"]["nodeName"] != sick


async def both(stage: Stage) -> bool:
    return await stage.lab.ranks_alive("theirs") == 2


async def tainted(stage: Stage, node: str) -> bool:
    found = (await stage.lab.get("node", node))["spec"].get("taints") or []
    return OUT_TAINT["key"] in {taint["key"] for taint in found}


@asynccontextmanager
async def looking(stage: Stage, node: str) -> AsyncIterator[set[tuple[int, bool, str]]]:
    """(ranks alive, the node has the out-of-service taint, its power), looked at until the body has ended."""
    seen: set[tuple[int, bool, str]] = set()

    async def look() -> None:
        has = await tainted(stage, node)
        power = (await stage.lab.lab("power-status", node)).split()[0] if has else "-"
        has = has and await tainted(stage, node)  # all the while that its power was read
        seen.add((await stage.lab.ranks_alive("theirs"), has, power))

    async with meanwhile(look, 0.1):
        yield seen

"""Many nodes of a real cluster fail at once: 30 that kwok answers for, and one with a kubelet, which comes back."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

from activities.backends.kubernetes import marks
from fleet.identity import op_of_reason
from fleet.model import NodeState
from tests.runbooks_kubernetes.stage import Stage

FAKE = 30


async def test_a_wave_is_isolated_told_on_the_nodes_and_repaired_until_it_is_given_back(
    stage: Stage,
) -> None:
    await stage.lab.lab("fake-nodes", str(FAKE))
    widen(stage)
    real = "gamma-n3"
    nodes = [real, *(f"gamma-f{n}" for n in range(1, FAKE + 1))]
    before = await stage.backend.node(real)
    handed_in = await stage.cli("evidence", "gamma", "-", stdin=kernel_log(nodes))
    assert handed_in.code == 0, handed_in.err
    assert f"{len(nodes)} pieces of evidence" in handed_in.out

    await stage.until(lambda: marked(stage, set(nodes)), "every node is marked")
    await stage.until(lambda: all_requested(stage), "all repairs are requested")
    found = {n["metadata"]["name"]: n for n in (await stage.lab.get("nodes"))["items"]}
    ops = {name: mark_of(found[name]) for name in nodes[1:]}
    assert len(set(ops.values())) == FAKE
    assert None not in ops.values()
    assert {name for name, raw in found.items() if mark_of(raw)} <= set(nodes)
    assert "kwok.x-k8s.io/node" in {t["key"] for t in found[nodes[1]]["spec"]["taints"]}
    described = await stage.cli("describe", "guard/gamma")
    assert re.search(r"3\d nodes: (3\d) isolated, \1 repairs requested", described.out), described.out

    assert await stage.result(f"node/gamma/{real}") == "repaired, checked and back at work"
    after = await stage.backend.node(real)
    assert after.boot != before.boot
    assert (after.state, after.op) == (NodeState.UP, None)
    story = "\n".join((await stage.view(f"node/gamma/{real}")).story)
    assert "by a wave" in story
    assert "isolated with mark" not in story

    await stage.until(lambda: told(stage, set(nodes)), "every node tells a person why")
    assert "XID 79" in await stage.lab.kubectl("describe", "node", "gamma-f30")

    given = await stage.cli("release", "--all", "--yes", "--reason", "enough")
    assert given.code == 0, given.err
    assert "nodes taken out of its waves" in given.out
    left = (await stage.lab.get("nodes"))["items"]
    assert [raw["metadata"]["name"] for raw in left if mark_of(raw) or raw["spec"].get("unschedulable")] == []
    assert all("kwok.x-k8s.io/node" in {t["key"] for t in raw["spec"]["taints"]} for raw in left if is_fake(raw))
    await asyncio.sleep(3)  # for what must not happen
    assert not [row for row in await stage.running() if row.startswith("node/")]


def widen(stage: Stage) -> None:
    """All of them may be isolated. Four are repaired at a time: the fake ones have no power hook and stay there."""
    text = stage.policy_file.read_text()
    wide = '  nodes_isolated: 100\n  nodes_isolated_percent: "100%"\n  nodes_out: 4\n  nodes_out_percent: "50%"\n'
    stage.policy_file.write_text(text.replace("limits:\n", f"limits:\n{wide}"))


def kernel_log(nodes: list[str]) -> str:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    what = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return "".join(f"{now} {node} kernel: NVRM: Xid (PCI:0000:ab:00): {what}\n" for node in nodes)


async def marked(stage: Stage, nodes: set[str]) -> bool:
    found = (await stage.lab.get("nodes"))["items"]
    return nodes <= {raw["metadata"]["name"] for raw in found if raw["spec"].get("unschedulable")}


async def all_requested(stage: Stage) -> bool:
    """But for a fake node that was called lost before, because the machine is full: it has a runbook of its own."""
    view = await stage.view_if("guard/gamma")
    wave = view.wave if view is not None else None
    return wave is not None and wave.nodes > FAKE - 3 and wave.requested + wave.left == wave.nodes


def mark_of(raw: dict[str, Any]) -> str | None:
    """The op of our taint, which is that of the annotation too."""
    ops = {t["value"] for t in raw["spec"].get("taints", []) if t["key"] == marks.ISOLATED}
    noted = op_of_reason(raw["metadata"].get("annotations", {}).get(marks.ISOLATED, ""))
    assert ops == ({noted} if noted else set()), raw["metadata"]["name"]
    assert not noted or raw["spec"].get("unschedulable") is True
    return noted


def is_fake(raw: dict[str, Any]) -> bool:
    return bool(raw["metadata"].get("labels", {}).get("type") == "kwok")


async def told(stage: Stage, nodes: set[str]) -> bool:
    events = (await stage.lab.get("events", "--field-selector", "reason=Isolated"))["items"]
    return {event["involvedObject"]["name"] for event in events} == nodes

"""Emptying a real node of what is no supervised job: disruption budgets hold, and nobody is forced in silence."""

from collections.abc import AsyncIterator

import pytest

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.backend import KubernetesBackend
from fleet.evacuation import EvacuationOrder, EvacuationState, Hold, Occupant
from fleet.identity import TOKEN_PREFIX
from fleet.model import NodeState
from tests.kubernetes.backends import hooks, repairing
from tests.kubernetes.lab import Cluster
from tests.kubernetes.strangers import HOLD, agent, budget, clear_away, loner, place, pods_of, service
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
OP = "opaaaaa"
OUT = marks.OUT_TAINT["key"]


@pytest.fixture
async def backend(gamma: Cluster) -> AsyncIterator[KubernetesBackend]:
    """Under the account `repair`; nobody's pods and none of our marks are left afterwards."""
    async with repairing(gamma, settle=2.0, **hooks(gamma)) as made:
        await until(made.capacity, lambda c: len(c.free_nodes) == 2, 60)
        yield made
    await gamma.kubectl("delete", "jobs", "--all", "--wait=true", "--timeout=60s")
    await clear_away(gamma)


@pytest.fixture
async def node(gamma: Cluster, backend: KubernetesBackend) -> str:
    """The node that is to be emptied; tests fill it before `isolated`."""
    return gamma.node(1)


async def isolated(backend: KubernetesBackend, node: str) -> None:
    assert (await backend.isolate(node, OP, "XID 79")).op == OP


async def one_pass(backend: KubernetesBackend, node: str, **may: object) -> EvacuationState:
    return await backend.evacuate(node, EvacuationOrder.model_validate({"op": OP, "evict": True, **may}))


async def emptied(backend: KubernetesBackend, node: str, **may: object) -> EvacuationState:
    return await until(lambda: one_pass(backend, node, **may), lambda s: not s.occupants, 60)


def only(state: EvacuationState) -> Occupant:
    assert len(state.occupants) == 1, state
    return state.occupants[0]


async def untouched(gamma: Cluster, app: str, uid: str) -> bool:
    """The very pod is there and nobody has asked it to go."""
    found = [p["metadata"] for p in await pods_of(gamma, app)]
    return [(m["uid"], m.get("deletionTimestamp")) for m in found] == [(uid, None)]


async def test_what_is_made_again_elsewhere_leaves_and_what_belongs_to_the_node_stays(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("web", node), agent("watcher"))
    (watcher,) = await pods_of(gamma, "watcher", node)
    await isolated(backend, node)
    looked = await one_pass(backend, node, evict=False)
    assert only(looked).hold is Hold.MOVABLE
    assert "ReplicaSet web-" in str(only(looked))
    assert "emptyDir" in only(looked).why
    assert looked.asked == ()
    asked = await one_pass(backend, node)
    assert asked.asked == (only(looked).id,)
    assert only(asked).hold is Hold.LEAVING
    last = await emptied(backend, node)
    assert last.ignored == (f"pod/default/{watcher['metadata']['name']}",)
    (again,) = await pods_of(gamma, "web")
    assert again["spec"]["nodeName"] == gamma.node(2)
    assert watcher["metadata"]["uid"] in {p["metadata"]["uid"] for p in await pods_of(gamma, "watcher", node)}


async def test_a_disruption_budget_that_allows_nothing_holds_until_it_is_gone(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("web", node), budget("web"))
    (pod,) = await pods_of(gamma, "web", node)
    await isolated(backend, node)
    for _ in range(3):
        seen = only(await one_pass(backend, node))
        assert seen.hold is Hold.PROTECTED
        assert "disruption budget web-stays needs 1 healthy pods and has 1" in seen.why
        assert await untouched(gamma, "web", pod["metadata"]["uid"])
    await gamma.kubectl("delete", "pdb", "web-stays")
    await emptied(backend, node)


async def test_a_person_may_have_a_protected_pod_deleted_and_only_that_very_one(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("web", node), budget("web"))
    (pod,) = await pods_of(gamma, "web", node)
    await isolated(backend, node)
    other = await one_pass(backend, node, forced=("another-uid",))
    assert only(other).hold is Hold.PROTECTED
    assert await untouched(gamma, "web", pod["metadata"]["uid"])
    forced = await one_pass(backend, node, evict=False, forced=(pod["metadata"]["uid"],))
    assert forced.asked == (f"pod/default/{pod['metadata']['name']}",)
    await emptied(backend, node, evict=False)


async def test_a_pod_without_a_controller_is_not_asked_to_leave_by_anybody_but_a_person(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, loner("notebook", node))
    (pod,) = await pods_of(gamma, "notebook")
    await isolated(backend, node)
    seen = only(await one_pass(backend, node, others=True))
    assert (seen.hold, seen.owner) == (Hold.UNMANAGED, "no controller")
    assert await untouched(gamma, "notebook", pod["metadata"]["uid"])
    await one_pass(backend, node, forced=(seen.uid,))
    await emptied(backend, node)
    assert await pods_of(gamma, "notebook") == []


async def test_a_finalizer_that_never_goes_is_named_and_left_to_whoever_set_it(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("kept", node, finalizers=(HOLD,)))
    (pod,) = await pods_of(gamma, "kept", node)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    await isolated(backend, node)
    seen = await until(lambda: one_pass(backend, node), lambda s: only(s).hold is Hold.KEPT, 30)
    assert HOLD in only(seen).why
    still = only(await one_pass(backend, node, forced=(uid,)))
    assert (still.uid, still.hold) == (uid, Hold.KEPT)
    assert (await gamma.get("pod", name))["metadata"]["finalizers"] == [HOLD]
    await gamma.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    await emptied(backend, node)


async def test_other_peoples_gpu_work_is_asked_to_leave_only_where_the_policy_says_so(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("inference", node, gpus=8))
    (pod,) = await pods_of(gamma, "inference", node)
    await isolated(backend, node)
    seen = only(await one_pass(backend, node))
    assert seen.hold is Hold.WORK
    assert "8 GPUs" in seen.why
    assert seen.holder in {job.native_id for job in await backend.holders(node)}
    assert await untouched(gamma, "inference", pod["metadata"]["uid"])
    await emptied(backend, node, others=True)
    assert await backend.holders(node) == ()


async def test_a_supervised_jobs_pods_are_left_to_its_own_runbook(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    made = gamma.training_job("llm")
    made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
    await gamma.apply(made, gamma.training_job("theirs", nodes=1, steps=1))
    await until(lambda: backend.progress("job/default/llm", 0), lambda p: p.step is not None, 60)
    await isolated(backend, node)
    assert await one_pass(backend, node, others=True) == EvacuationState()
    assert await gamma.ranks_alive("llm") == 2
    assert not any(p["metadata"].get("deletionTimestamp") for p in await gamma.pods("llm"))


async def test_a_silent_node_is_taken_out_of_service_only_with_a_receipt_and_its_power_off(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("web", node))
    (pod,) = await pods_of(gamma, "web", node)
    uid = pod["metadata"]["uid"]
    await isolated(backend, node)
    await gamma.lab("kubelet-kill", node)
    await until(lambda: backend.node(node), lambda n: n.state is NodeState.DOWN, 60)
    assert (await one_pass(backend, node)).asked == ()
    assert only(await one_pass(backend, node, fenced=True)).hold is Hold.MOVABLE
    assert OUT not in await taints(gamma, node)
    assert await untouched(gamma, "web", uid)

    await backend.power_off(node, OP)
    assert (await one_pass(backend, node)).asked == ()
    assert OUT not in await taints(gamma, node)
    await one_pass(backend, node, fenced=True)
    assert OUT in await taints(gamma, node)
    await until(lambda: one_pass(backend, node, fenced=True), lambda s: not s.occupants, 60)
    assert uid not in {p["metadata"]["uid"] for p in await pods_of(gamma, "web")}
    described = await gamma.kubectl("describe", "node", node)
    assert "OutOfService" in described
    await backend.power_on(node, OP)
    assert OUT not in await taints(gamma, node)
    await until(lambda: backend.node(node), lambda n: n.responding and n.state is not NodeState.DOWN, 60)


async def test_an_out_of_service_taint_of_somebody_else_stays_theirs_and_ours_is_given_back(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    await place(gamma, service("web", node, finalizers=(HOLD,)))
    await isolated(backend, node)
    await gamma.lab("power-off", node)
    await until(lambda: backend.node(node), lambda n: n.state is NodeState.DOWN, 60)
    await gamma.kubectl("taint", "node", node, f"{OUT}=nodeshutdown:NoExecute")
    assert (await one_pass(backend, node, fenced=True)).occupants
    await backend.give_back_all()
    assert OUT in await taints(gamma, node)

    await gamma.kubectl("taint", "node", node, f"{OUT}-")
    await isolated(backend, node)
    assert (await one_pass(backend, node, fenced=True)).occupants
    assert OUT in await taints(gamma, node)
    await backend.give_back_all()
    assert OUT not in await taints(gamma, node)
    await backend.power_on(node, OP)
    await until(lambda: backend.node(node), lambda n: n.responding and n.state is NodeState.UP, 60)


async def taints(gamma: Cluster, node: str) -> set[str]:
    found = (await gamma.get("node", node))["spec"].get("taints") or []
    return {taint["key"] for taint in found}


async def test_a_volume_that_is_attached_to_a_node_that_is_off_is_waited_for(
    gamma: Cluster, backend: KubernetesBackend, node: str
) -> None:
    attachment = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "theirs"},
        "spec": {"attacher": "example.com", "nodeName": node, "source": {"persistentVolumeName": "data"}},
    }
    await gamma.apply(attachment)
    await gamma.kubectl(
        "patch",
        "volumeattachment",
        "theirs",
        "--subresource=status",
        "--type=merge",
        "-p",
        '{"status":{"attached":true}}',
    )
    await isolated(backend, node)
    await gamma.lab("power-off", node)
    await until(lambda: backend.node(node), lambda n: n.state is NodeState.DOWN, 60)
    seen = only(await one_pass(backend, node, fenced=True))
    assert (seen.id, seen.owner) == ("volume/data", "example.com")
    assert OUT in await taints(gamma, node)
    await gamma.kubectl("delete", "volumeattachment", "theirs")
    assert (await one_pass(backend, node, fenced=True)).occupants == ()
    await backend.power_on(node, OP)
    await until(lambda: backend.node(node), lambda n: n.responding and n.state is not NodeState.DOWN, 60)

"""The Kubernetes lab itself: what each of its events does to real nodes, containers and the control plane."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from fleet.faults.sources.flight_recorder import read_dump
from tests.kubernetes.conftest import Opener
from tests.kubernetes.lab import LAB, Cluster, call, cluster, clusters, interfaces, leftovers, rank_pids
from tests.slurm.lab import short_folder
from tests.slurm.waiting import until
from workers.lab_k8s import build

pytestmark = pytest.mark.kubernetes
JOB = "train"
LABEL = f"batch.kubernetes.io/job-name={JOB}"
MODULES = LAB.parent / "k8s"


@pytest.fixture
async def training(gamma: Cluster) -> AsyncIterator[Cluster]:
    """Two ranks that train, one on each node; no rank is left afterwards."""
    await gamma.apply(gamma.training_job(JOB))
    await until(lambda: newest_step(gamma), lambda step: step > 0)
    await gamma.kubectl("wait", "pod", "-l", LABEL, "--for=condition=Ready", "--timeout=30s")
    yield gamma
    await gamma.kubectl("delete", "job", JOB, "--wait")
    await until(lambda: gamma.ranks_alive(JOB), lambda alive: alive == 0)
    shutil.rmtree(gamma.checkpoints(JOB))


async def newest_step(cluster: Cluster) -> int:
    """Step of the newest complete checkpoint, 0 before the first."""
    found = cluster.checkpoints(JOB).glob("step_*/COMPLETE")
    return max((int(path.parent.name[5:13]) for path in found), default=0)


async def rank_on(cluster: Cluster, node: str) -> tuple[str, str]:
    """(pod, container id) of the rank that the apiserver places on the node."""
    pod = next(p for p in await cluster.pods(JOB) if p["spec"]["nodeName"] == node)
    return pod["metadata"]["name"], pod["status"]["containerStatuses"][0]["containerID"]


async def phase_of(cluster: Cluster, pod: str) -> str:
    found = [p["status"]["phase"] for p in await cluster.pods(JOB) if p["metadata"]["name"] == pod]
    return str(found[0]) if found else "gone"


async def gpus(cluster: Cluster, node: str) -> tuple[str, str]:
    status = (await cluster.get("node", node))["status"]
    return status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- training


async def test_a_job_of_two_ranks_trains_on_two_real_nodes_and_its_logs_come_through_the_apiserver(
    training: Cluster,
) -> None:
    nodes = (await training.get("nodes"))["items"]
    assert {n["metadata"]["name"] for n in nodes} == {"gamma-n1", "gamma-n2"}
    pinned = re.search(r"k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes" / "go.mod").read_text())
    assert pinned is not None
    assert {n["status"]["nodeInfo"]["kubeletVersion"] for n in nodes} == {pinned[1]}
    assert [await gpus(training, training.node(i)) for i in (1, 2)] == [("8", "8"), ("8", "8")]
    assert len({n["status"]["nodeInfo"]["bootID"] for n in nodes}) == 2
    pods = await training.pods(JOB)
    assert {p["spec"]["nodeName"] for p in pods} == {"gamma-n1", "gamma-n2"}
    said = await training.kubectl("logs", "-l", LABEL, "--tail=-1")
    assert "starting at step 0" in said
    assert "step 1/" in said


async def test_the_training_image_has_all_that_a_rank_needs_to_dump_what_it_waits_for(gamma: Cluster) -> None:
    """Of its own: no folder of programs is mounted into the pod."""
    job = gamma.training_job(JOB)
    dumps = gamma.work / "dumps"
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] != "training"]
    (rank,) = pod["containers"]
    rank["image"] = "lab/train:1"
    rank["volumeMounts"] = [m for m in rank["volumeMounts"] if m["name"] != "training"]
    rank["args"] += ["--dumps", str(dumps), "--dump-after", "0.5", "--hang-from-step", "3", "--fault-rank", "1"]
    await gamma.apply(job)
    waits = dumps / "nccl_trace_rank_0"

    async def waited_for() -> list[int | None]:
        return [r.collective_seq for r in read_dump(waits.read_bytes()).open_records()] if waits.exists() else []

    await until(waited_for, lambda numbers: numbers == [3])
    await gamma.kubectl("delete", "job", JOB, "--wait")
    await until(lambda: gamma.ranks_alive(JOB), lambda alive: alive == 0)
    shutil.rmtree(gamma.checkpoints(JOB))


# -- nodes


async def test_a_crashed_node_takes_its_rank_along_and_comes_back_as_another_boot(training: Cluster) -> None:
    node = training.node(2)
    pod, _ = await rank_on(training, node)
    before = await training.boot_id(node)
    await training.lab("node-crash", node)
    assert await training.ranks_alive(JOB) == 1
    assert (await training.lab("power-status", node)).strip() == "off"
    assert await phase_of(training, pod) == "Running"  # the apiserver cannot know yet
    await training.lab("node-start", node)
    assert await training.boot_id(node) != before
    assert await gpus(training, node) == ("8", "8")
    await until(lambda: phase_of(training, pod), lambda phase: phase in {"Failed", "gone"})


async def stopped_of(ranks: Sequence[int]) -> list[bool]:
    """Whether each rank's process is stopped, sorted."""
    return sorted(state_of(pid) == "T" for pid in ranks)


async def test_a_frozen_node_goes_on_where_it_was_with_the_same_boot(training: Cluster) -> None:
    node = training.node(2)
    before = await training.boot_id(node)
    ranks = rank_pids(training.checkpoints(JOB))
    await training.lab("node-freeze", node)
    await until(lambda: stopped_of(ranks), lambda stopped: stopped == [False, True])  # a busy machine takes a moment
    await until(lambda: training.ready(node), lambda ready: ready == "Unknown")
    assert await training.ranks_alive(JOB) == 2
    stood = await newest_step(training)  # the other rank waits for the frozen one
    await training.lab("node-thaw", node)
    await until(lambda: newest_step(training), lambda step: step > stood)
    await until(lambda: training.ready(node), lambda ready: ready == "True")
    assert await training.boot_id(node) == before
    assert rank_pids(training.checkpoints(JOB)) == ranks


async def test_a_container_outlives_its_kubelet_and_is_taken_over_by_the_next_one(training: Cluster) -> None:
    node = training.node(2)
    boot, rank = await training.boot_id(node), await rank_on(training, node)
    ranks = rank_pids(training.checkpoints(JOB))
    await training.lab("kubelet-kill", node)
    wrote = await newest_step(training)
    await until(lambda: newest_step(training), lambda step: step > wrote)
    await until(lambda: training.ready(node), lambda ready: ready == "Unknown")
    await training.lab("kubelet-start", node)
    await until(lambda: training.ready(node), lambda ready: ready == "True")
    assert (await training.boot_id(node), await rank_on(training, node)) == (boot, rank)
    assert rank_pids(training.checkpoints(JOB)) == ranks


async def test_a_pod_object_deleted_by_force_says_nothing_about_its_container(training: Cluster) -> None:
    node = training.node(2)
    pod, _ = await rank_on(training, node)
    await training.lab("kubelet-kill", node)
    await training.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    left = [p for p in await training.pods(JOB) if p["metadata"]["name"] == pod]
    assert all("deletionTimestamp" in p["metadata"] for p in left)  # the Job's finalizer may keep the object
    wrote = await newest_step(training)
    await until(lambda: newest_step(training), lambda step: step > wrote)
    assert await training.ranks_alive(JOB) == 2
    await training.lab("kubelet-start", node)
    await until(lambda: training.ranks_alive(JOB), lambda alive: alive == 0)  # the next kubelet ends it


async def test_the_power_hook_says_what_is_and_is_harmless_when_repeated(gamma: Cluster) -> None:
    node = gamma.node(1)
    hook = {verb: [word.replace("{node}", node) for word in argv] for verb, argv in gamma.power().items()}
    before = await gamma.boot_id(node)
    assert await call(*hook["status"]) == "on\n"
    for verb in ("off", "on"):
        await call(*hook[verb])
        await call(*hook[verb])
        assert await call(*hook["status"]) == f"{verb}\n"
    assert await gamma.boot_id(node) != before
    assert await gamma.ready(node) == "True"


async def test_a_lost_gpu_is_back_after_a_reboot(gamma: Cluster) -> None:
    node = gamma.node(1)
    await gamma.lab("gpu-lose", node, "3")
    assert await gpus(gamma, node) == ("7", "7")
    await gamma.lab("node-reboot", node)
    assert await gpus(gamma, node) == ("8", "8")


# -- control plane


async def test_ranks_go_on_while_the_apiserver_is_killed_frozen_or_slow(training: Cluster) -> None:
    ranks = rank_pids(training.checkpoints(JOB))
    await training.lab("api-kill")
    with pytest.raises(AssertionError, match="refused"):
        await training.kubectl("get", "nodes")
    await training.lab("api-start")
    await training.lab("api-freeze")
    with pytest.raises(AssertionError, match=r"[Tt]imeout|deadline"):
        await training.kubectl("--request-timeout=1s", "get", "nodes")
    status = await training.lab("status")
    assert ",frozen" in status
    assert "the apiserver does not answer" in status
    await training.lab("api-thaw")
    await training.lab("api-slow", "80")
    apiserver = int(status.partition("api=")[2].partition(",")[0])
    for state in ("T", "S"):
        await until(lambda: asyncio.to_thread(state_of, apiserver), lambda seen, want=state: seen == want)
    await training.kubectl("get", "nodes")
    await training.lab("api-thaw")
    assert rank_pids(training.checkpoints(JOB)) == ranks


async def test_fake_nodes_are_ready_beside_the_real_ones(gamma: Cluster) -> None:
    await gamma.lab("fake-nodes", "30")
    fake = (await gamma.get("nodes", "-l", "type=kwok"))["items"]
    assert len(fake) == 30
    assert {n["status"]["allocatable"]["nvidia.com/gpu"] for n in fake} == {"8"}
    await gamma.kubectl("delete", "nodes", "-l", "type=kwok")


# -- clusters


async def test_two_clusters_side_by_side_share_nothing_and_one_goes_without_the_other(k8s_lab: Opener) -> None:
    async with clusters("left", "right", nodes=1) as (left, right):
        addresses = [(await c.get("node", c.node(1)))["status"]["addresses"][0]["address"] for c in (left, right)]
        assert len(set(addresses)) == 2
        await left.lab("rm")
        assert left.cgroups() == ()
        assert await right.ready("right-n1") == "True"
        assert [n["metadata"]["name"] for n in (await right.get("nodes"))["items"]] == ["right-n1"]


async def test_the_saved_state_is_kept_when_asked(k8s_lab: Opener) -> None:
    async with cluster("kept", nodes=1) as kept:
        await kept.kubectl("create", "namespace", "stays")
        await kept.lab("stop")
        await kept.lab("start", "-n", "1", "-k")
        assert (await kept.get("namespace", "stays"))["status"]["phase"] == "Active"
        assert await kept.ready("kept-n1") == "True"


async def test_a_start_that_is_killed_half_way_is_removed_whole(k8s_lab: Opener) -> None:
    root, before = short_folder(), interfaces()
    start = await asyncio.create_subprocess_exec(LAB, "--root", str(root), "start", "half", "-n", "2")
    made = Cluster("half", root)
    await until(lambda: asyncio.to_thread(made.cgroups), bool)  # a node is about to boot
    os.kill(start.pid, signal.SIGKILL)
    await start.wait()
    await made.lab("rm")
    assert leftovers(root, [made], before) == []
    made.work.rmdir()
    root.rmdir()


async def test_a_kubelet_that_does_not_run_is_told_at_once_and_nothing_goes_on(k8s_lab: Opener) -> None:
    root, before = short_folder(), interfaces()
    broken = root / "bin" / "kubelet"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no memory >&2\nexit 1\n")
    broken.chmod(0o755)
    programs = f"K8S_BIN={broken.parent}:{build(check_only=True)}"
    made = Cluster("lame", root)
    with pytest.raises(AssertionError, match="the kubelet of lame-n1 ended: no memory"):
        await call("env", programs, str(LAB), "--root", str(root), "start", "lame", "-n", "1")
    assert made.place.known() == {"lame": "stopped"}
    await made.lab("rm")
    assert leftovers(root, [made], before) == []
    await asyncio.to_thread(shutil.rmtree, root)


async def test_names_numbers_and_foreign_folders_are_refused(k8s_lab: Opener) -> None:
    root = short_folder()
    (root / "mine").mkdir()
    (root / "mine" / "file").write_text("")
    lab = (str(LAB), "--root", str(root))
    for words, said in (
        (("start", "Gamma"), "a cluster's name"),
        (("start", "gamma", "-n", "9"), "0 to 8 nodes"),
        (("start", "mine"), "not a cluster of this lab"),
        (("rm", "mine"), "not a cluster of this lab"),
        (("node-crash", "gamma", "1"), "no cluster gamma"),
    ):
        with pytest.raises(AssertionError, match=said):
            await call(*lab, *words)
    assert await asyncio.to_thread(os.listdir, root) == ["mine"]
    await asyncio.to_thread(shutil.rmtree, root)

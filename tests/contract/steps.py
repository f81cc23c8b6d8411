"""The steps that contract tests share; deadlines come from the cluster's own probe."""

from collections.abc import Callable
from typing import Any

from activities.backends.port import PowerControl
from fleet.model import NativeJob, NodeFacts, NodeState, Phase, Progress
from fleet.orders import JobSpec, StartOrder, StopQuery
from tests.contract.rig import Rig, eventually

OP = "opaaaaa"
OTHER_OP = "opbbbbb"
START = 30.0
"""Seconds that a free cluster may take to start a job and make its first steps."""
GIVES_UP = 30.0
"""Seconds until a rank's daemon gives up telling its end by way of a lost node: on Slurm five tries of MessageTimeout
and a second each; so long a job that has lost one of its nodes is COMPLETING."""


async def phase(rig: Rig, native_id: str, wanted: Phase, seconds: float = START) -> NativeJob:
    """Waits until the job is in that phase."""
    return await eventually(rig, lambda: rig.backend.job(native_id), lambda j: j.phase is wanted, seconds, wanted)


async def progress(
    rig: Rig, native_id: str, restarts: int, wanted: Callable[[Progress], bool], seconds: float = START
) -> Progress:
    """Waits for something in the attempt's own output."""
    return await eventually(rig, lambda: rig.backend.progress(native_id, restarts), wanted, seconds, "far enough")


async def training(rig: Rig, native_id: str, restarts: int = 0) -> NativeJob:
    """Waits until the attempt runs, all its ranks live and it makes steps."""
    job = await phase(rig, native_id, Phase.RUNNING)
    await progress(rig, native_id, restarts, lambda p: p.step is not None)
    await ranks(rig, native_id, len(job.nodes))
    return job


async def ranks(rig: Rig, native_id: str, wanted: int, seconds: float = START) -> None:
    """Waits until that many ranks live, by the machine's own truth."""
    await eventually(rig, lambda: rig.ranks_alive(native_id), lambda n: n == wanted, seconds, f"{wanted} ranks")


async def started(rig: Rig, name: str = "train", **how: Any) -> tuple[JobSpec, NativeJob]:
    """Submits a training and waits until it trains."""
    spec = rig.training_spec(name, **how)
    job = await rig.backend.submit(spec)
    return spec, await training(rig, job.native_id)


async def adopted(rig: Rig, name: str = "train", **how: Any) -> tuple[JobSpec, NativeJob]:
    """The same, and held by us."""
    spec, job = await started(rig, name, **how)
    taken = await rig.backend.adopt(job.native_id)
    return spec, taken.job


async def saved(rig: Rig, spec: JobSpec, native_id: str, restarts: int = 0) -> int:
    """Asks for a checkpoint and waits until a newer one is complete in the job's storage; returns its step."""
    before = await rig.newest_complete_checkpoint(spec.job) or 0
    await rig.backend.request_checkpoint(native_id, "USR1")
    step = await eventually(
        rig,
        lambda: rig.newest_complete_checkpoint(spec.job),
        lambda s: (s or 0) > before,
        START,
        "a newer checkpoint",
    )
    assert step is not None
    return step


async def stopped(rig: Rig, native_id: str, restarts: int = 0) -> NativeJob:
    """Stops the attempt and waits until the job is back in the queue."""
    facts = await rig.backend.probe()
    await rig.backend.stop(native_id, restarts)
    return await phase(rig, native_id, Phase.PENDING, facts.stop_takes + 5)


async def restarted(rig: Rig, native_id: str, restarts: int, **order: Any) -> NativeJob:
    """Starts the next attempt of a stopped job and waits until it trains."""
    await rig.backend.start_attempt(StartOrder(native_id=native_id, restarts=restarts, **order))
    return await training(rig, native_id, restarts)


async def boots(rig: Rig, nodes: tuple[str, ...]) -> dict[str, str]:
    return {node: (await rig.backend.node(node)).boot for node in nodes}


async def query(rig: Rig, job: NativeJob, ordered: bool = True, since: float | None = None) -> StopQuery:
    """Made while the attempt still runs: its nodes and their boots."""
    return StopQuery(
        native_id=job.native_id,
        restarts=job.restarts,
        boots=await boots(rig, job.nodes),
        ordered=ordered,
        since=rig.now() if since is None else since,
    )


async def lost_by_scheduler(rig: Rig, job: NativeJob) -> NativeJob:
    """Waits until the scheduler gave the node up and put the job back into the queue. Where it leaves the job as it
    is, the runbook's stop does that once the node is called lost, as it does for real."""
    facts = await rig.backend.probe()
    if not rig.batch_scheduler:

        async def lost_nodes() -> bool:
            return any([(await rig.backend.node(n)).state is NodeState.DOWN for n in job.nodes])

        await eventually(rig, lost_nodes, bool, facts.node_down_after + 15, "given up")
        await rig.backend.stop(job.native_id, job.restarts)
    return await phase(rig, job.native_id, Phase.PENDING, facts.node_down_after + facts.stop_takes + GIVES_UP)


async def node_state(rig: Rig, node: str, wanted: Callable[[NodeFacts], bool], seconds: float = START) -> NodeFacts:
    return await eventually(rig, lambda: rig.backend.node(node), wanted, seconds, "in the wanted state")


async def rebooted(rig: Rig, node: str, op: str = OP) -> NodeFacts:
    """Asks for a reboot and waits until a newer boot answers."""
    before = await rig.backend.node(node)
    asked = rig.now()
    await rig.backend.reboot(node, op)
    timeout = (await rig.backend.probe()).reboot_timeout

    def back(facts: NodeFacts) -> bool:
        return facts.boot != before.boot and facts.booted_at >= asked - 1 and facts.responding

    return await node_state(rig, node, back, timeout)


async def free(rig: Rig, node: str) -> bool:
    """Could the node take work now?"""
    return node in (await rig.backend.capacity()).free_nodes


def power(rig: Rig) -> PowerControl:
    """The cluster's power control; every rig of this suite has one."""
    assert isinstance(rig.backend, PowerControl)
    assert rig.backend.has_power
    return rig.backend

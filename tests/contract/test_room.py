"""What a placement weighs, and a trial that leaves nothing behind."""

from fleet.model import Phase, Room
from fleet.orders import JobSpec
from tests.contract.rig import Rig, eventually
from tests.contract.steps import START, phase, started


def free(room: Room) -> int:
    return sum(group.free for group in room.groups)


async def test_the_room_counts_every_node_by_its_gpus_and_says_what_is_free(rig: Rig) -> None:
    nodes, room = await rig.backend.nodes(max_age=0), await rig.backend.room()

    assert room.cluster == rig.backend.cluster
    assert sum(group.total for group in room.groups) == free(room) == len(nodes)
    assert {group.gpus for group in room.groups} == {8}
    assert {group.gpu_model for group in room.groups} == {rig.gpu_model}
    assert room.waiting == ()


async def test_nodes_that_a_job_holds_are_not_free_and_a_job_that_waits_for_room_shows(rig: Rig) -> None:
    before = await rig.backend.room()
    await started(rig, "big", nodes=free(before) - 1)
    waits = await rig.backend.submit(rig.training_spec("waits", nodes=2))
    await phase(rig, waits.native_id, Phase.PENDING)

    room = await eventually(rig, rig.backend.room, lambda r: free(r) <= 1, START, "at most one free node")

    assert room.waiting == (2,)
    assert sum(group.total for group in room.groups) == sum(group.total for group in before.groups)


async def test_a_trial_says_yes_and_makes_no_job(rig: Rig) -> None:
    before = await rig.backend.jobs(max_age=0)

    assert await rig.backend.try_submit(rig.training_spec("train")) == ()
    assert {j.native_id for j in await rig.backend.jobs(max_age=0)} == {j.native_id for j in before}


async def test_a_trial_of_a_job_that_is_there_already_is_no_refusal(rig: Rig) -> None:
    spec, job = await started(rig)

    assert await rig.backend.try_submit(spec) == ()
    assert (await rig.backend.job(job.native_id)).phase is Phase.RUNNING


async def test_a_trial_names_what_is_wrong_and_makes_no_job(rig: Rig) -> None:
    before = await rig.backend.jobs(max_age=0)
    nonsense = JobSpec(job="key-bad", name="bad", script="no script of any scheduler")

    (why,) = await rig.backend.try_submit(nonsense)

    assert why
    assert {j.native_id for j in await rig.backend.jobs(max_age=0)} == {j.native_id for j in before}

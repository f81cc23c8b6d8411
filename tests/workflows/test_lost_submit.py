"""A controller that dies just after a submit loses the job that it had acknowledged."""

from tests.workflows.stage import Stage


async def test_a_submit_that_the_controller_lost_before_it_ran_is_made_again(stage: Stage) -> None:
    await stage.submit(stage.spec("filler", nodes=4))
    await stage.runs_in("filler", 1)
    await stage.submit(stage.spec("train", nodes=2))

    first = await _native_id(stage)
    with stage.faults._store.begin() as db:
        db.execute("delete from jobs where id = ?", (int(first),))

    async def again() -> bool:
        view = await stage.view("job/train")
        return any("submitted again by its key" in line for line in view.story)

    await stage.until(again, "the lost job is submitted again")
    await stage.until(lambda: stage.faults.native_ids("train"), "it is in the queue again")

    assert len(stage.faults.native_ids("train")) == 1


async def _native_id(stage: Stage) -> str:
    async def there() -> str | None:
        ids = stage.faults.native_ids("train")
        return ids[0] if ids else None

    native_id: str = await stage.until(there, "the job is in the queue")
    return native_id

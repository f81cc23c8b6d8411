"""Small workflows for the tests of the server, the connection and the logs. No runbook."""

from datetime import timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import asyncio
    import logging

    import structlog
    from temporalio.common import SearchAttributeKey

    from activities.api import OnNode
    from fleet import attributes

QUEUE = "samples"


@workflow.defn
class Waiter:
    """Waits for an update and returns what it was told."""

    def __init__(self) -> None:
        self.told = ""

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.told != "")
        return self.told

    @workflow.update
    async def tell(self, text: str) -> str:
        self.told = text
        return f"got {text}"


@workflow.defn
class Sleeper:
    """Sleeps for hours, then tells how long by its own clock."""

    @workflow.run
    async def run(self, hours: int) -> float:
        begin = workflow.now()
        await asyncio.sleep(timedelta(hours=hours).total_seconds())
        return (workflow.now() - begin).total_seconds()


@activity.defn
async def look_at_node(where: OnNode) -> str:
    """Logs in three ways and gives its input back as it came: a pydantic value."""
    structlog.get_logger("ours").info("looking", text="HF_TOKEN=s3cr3t")
    logging.getLogger("library").warning("two\nlines")
    await asyncio.to_thread(structlog.get_logger("ours").info, "from a thread")
    assert isinstance(where, OnNode)
    return where.node


@workflow.defn
class Logger:
    """Logs in the workflow and runs an activity that logs."""

    @workflow.run
    async def run(self, where: OnNode) -> str:
        workflow.upsert_search_attributes([SearchAttributeKey.for_keyword(attributes.STEP).value_set("isolate")])
        workflow.logger.info("in the workflow")
        return await workflow.execute_activity(
            look_at_node, where, start_to_close_timeout=timedelta(seconds=10), retry_policy=None
        )

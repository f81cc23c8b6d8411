"""Lines that a real worker writes name their runbook, run, step, cluster and attempt."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.api import OnNode
from clients.connection import connect
from clients.embedded import ServerInfo
from tests.temporal.samples import Logger, look_at_node
from workers.logs import LogContext, configure_logs, core_runtime


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logs(stream, format="json")
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


async def run(client: Client, queue: str) -> tuple[str, str | None]:
    worker = Worker(
        client, task_queue=queue, workflows=[Logger], activities=[look_at_node], interceptors=[LogContext()]
    )
    async with worker:
        handle = await client.start_workflow(
            Logger.run, OnNode(cluster="alpha", node="n1"), id=f"node/alpha/{queue}", task_queue=queue
        )
        assert await handle.result() == "n1"
    return handle.id, handle.result_run_id


async def test_every_line_names_runbook_run_step_cluster_and_attempt(
    temporal_client: Client, lines: io.StringIO
) -> None:
    workflow_id, run_id = await run(temporal_client, "cluster.alpha")
    said = {line["event"]: line for line in map(json.loads, lines.getvalue().splitlines())}
    where = {"workflow_id": workflow_id, "run_id": run_id, "attempt": 1}

    expected = where | {"step": "look_at_node", "cluster": "alpha", "node": "n1"}
    for event in ("looking", "two\nlines", "from a thread"):
        assert expected.items() <= said[event].items(), said[event]
        assert next(iter(said[event])) == "workflow_id"
    assert said["looking"]["text"] == "HF_TOKEN=[redacted]"

    assert (where | {"step": "isolate"}).items() <= said["in the workflow"].items(), said["in the workflow"]


async def test_words_of_one_activity_do_not_stay_for_later_lines(temporal_client: Client, lines: io.StringIO) -> None:
    await run(temporal_client, "cluster.beta")
    structlog.get_logger("ours").info("afterwards")
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert last["event"] == "afterwards"
    assert "workflow_id" not in last


async def test_the_sdks_core_logs_go_the_same_way(temporal_server: ServerInfo, lines: io.StringIO) -> None:
    runtime = core_runtime("DEBUG")
    logging.getLogger("temporalio.core").setLevel(logging.DEBUG)
    client = await connect(temporal_server.address, runtime=runtime)
    await run(client, "core")
    said = [line for line in map(json.loads, lines.getvalue().splitlines()) if line["logger"] == "temporalio.core"]
    logging.getLogger("temporalio.core").setLevel(logging.NOTSET)
    assert said
    assert all("temporal_log" not in line for line in said)

"""A stage for runbooks: a Temporal namespace, a simulated fleet, a policy and a worker in this process, all its own.

What a test asks of it is the effect: the fleet's journal, its nodes, checkpoints, stored reports, and what a person
reads of a runbook.
"""

import asyncio
import functools
import inspect
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from activities.backends.sim import ClusterShape, SimBackend, SimSettings, create_world
from activities.backends.sim.faults import Faults
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore, sqlite_url
from clients.connection import connect
from clients.questions import make_answer
from fleet.attributes import ATTRIBUTES
from fleet.decision import Action
from fleet.errors import TemporaryError
from fleet.faults.evidence import Evidence
from fleet.faults.parse import parse_any
from fleet.identity import job_workflow_id, node_workflow_id
from fleet.model import NativeJob, NodeFacts, Phase
from fleet.orders import JobSpec
from fleet.people import Answer, Choice, Outcome, Question
from fleet.policy import Step
from fleet.report import Report
from fleet.runbooks import (
    VIEW,
    Ending,
    EvidenceBatch,
    FreezeOrder,
    HealInput,
    HealRequestNote,
    Order,
    Runbook,
    Signal,
    SuperviseInput,
    Update,
    View,
)
from tests.workflows.gates import Gates
from workers.worker import open_runtime, run_worker

SHAPE = ClusterShape(
    nodes=4,
    kill_wait=0.3,
    term_takes=0.1,
    node_down_after=1.5,
    no_answer_after=0.5,
    reboot_seconds=0.4,
    boot_timeout=8,
    stale_kill_after=0.3,
    settle=0.5,
    message_timeout=0.1,
)
"""As the default shape, in a hurry; the scheduler's own requeue delay of 121 s stays, so that nobody waits it out."""
LIMITS = {
    "in_place_delays": "[0s]",
    "early_failure": "0s",
    "checkpoint_grace": "1.5s",
    "step_timeout": "15s",
    "run_timeout": "15s",
    "question_expiry": "1h",
}
WIDE = {"nodes_out": "40", "nodes_out_percent": '"100%"'}
PATIENCE = 120.0
"""Seconds in which a condition must come true; far more than it takes on an idle machine."""
HISTORIES = Path(__file__).with_name("histories")
RECORDING = "GPU_RUNBOOKS_RECORD"

Handle = WorkflowHandle[Any, Any]
T = TypeVar("T")


class Stage:
    """One test's world. Clusters `alpha` (four nodes) and `beta` (two)."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.world = folder / "world.sqlite"
        self.policy_file = folder / "fleet.yaml"
        self.faults = Faults(self.world, "alpha")
        self.beta = Faults(self.world, "beta")
        self.alpha = SimBackend("alpha", SimSettings(path=self.world))
        self.gates = Gates()
        self.runtime: Runtime | None = None
        self._worker: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    # -- the house

    @classmethod
    async def open(cls, address: str, folder: Path, name: str, shape: ClusterShape = SHAPE) -> "Stage":
        create_world(folder / "world.sqlite", {"alpha": shape, "beta": shape.model_copy(update={"nodes": 2})})
        stage = cls(await connect(address, await make_namespace(address, name)), folder)
        stage.write_policy()
        return stage

    def write_policy(
        self,
        *,
        modes: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
        more: str = "",
        sites: Mapping[str, Path] | None = None,
    ) -> None:
        """Every step automatic, with the changes given. May be called again while runbooks run. `sites`: storage of
        each cluster, by the cluster's name."""
        all_modes = dict.fromkeys(map(str, Step), "auto") | dict(modes or {})
        rows = [
            "version: 1",
            "clusters:",
            *(f"  {name}: {{kind: sim, path: world.sqlite{_site(name, sites)}}}" for name in ("alpha", "beta")),
            *(("sites:", *(f"  at-{name}: {{mount: {path}}}" for name, path in sites.items())) if sites else ()),
            "modes: {" + ", ".join(f"{k}: {v}" for k, v in all_modes.items()) + "}",
            "limits:",
            *(f"  {k}: {v}" for k, v in (LIMITS | dict(limits or {})).items()),
            more,
        ]
        self.policy_file.write_text("\n".join(rows) + "\n")

    async def start_worker(self, *clusters: str, embedded: bool = True, sites: Sequence[str] = ()) -> None:
        """Runbooks and the given clusters (`alpha` by default), as the real worker wires them."""
        self._stop = asyncio.Event()
        self.runtime = await open_runtime(self.client, self.policy_file, self.folder, embedded=embedded)
        self._worker = asyncio.create_task(
            run_worker(self.runtime, clusters or ("alpha",), sites=sites, stop=self._stop, interceptors=[self.gates])
        )
        for cluster in clusters or ("alpha",):
            for workflow_id in (f"watch/{cluster}", f"guard/{cluster}"):
                await self.until(functools.partial(self._known, workflow_id), f"{workflow_id} runs")

    async def stop_worker(self) -> None:
        self.gates.open_all()
        self._stop.set()
        if self._worker is not None:
            await self._worker
            self._worker = None

    async def close(self) -> None:
        """Stops the worker and ends every runbook; whatever the worker raised fails the test."""
        try:
            await self.stop_worker()
        finally:
            async for row in self.client.list_workflows('ExecutionStatus="Running"'):
                try:
                    await self.client.get_workflow_handle(row.id).terminate(rpc_timeout=timedelta(seconds=3))
                except RPCError:
                    continue
            await self.alpha.close()
            self.faults.close()
            self.beta.close()

    # -- jobs

    def spec(
        self, job: str = "train", *, tokens: str = "", signal: bool = True, **directives: int | float | str
    ) -> JobSpec:
        """Two nodes, many quick steps, a checkpoint every ten; `directives` change it."""
        given: dict[str, object] = {"nodes": 2, "steps": 100_000, "step_time": 0.05, "checkpoint_every": 10}
        given |= {"save_time": 0.05, "load_time": 0.1, **directives}
        words = [f"gpu-runbooks.io/job={job}", f"gpu-runbooks.io/total-steps={given['steps']}", "my own words"]
        words += ["gpu-runbooks.io/supervise", tokens] if tokens != "-" else []
        words += ["gpu-runbooks.io/checkpoint-signal=USR1"] if signal else []
        script = f"#!/bin/sh\n#SIM {' '.join(f'{k}={v}' for k, v in given.items())}\n"
        return JobSpec(job=job, name="train", script=script, comment=" ".join(words))

    async def supervise(self, job: str = "train", *, spec: JobSpec | None = None) -> str:
        """A person submits a job that asks for supervision; returns its native id once it is adopted and saved."""
        native_id = self.faults.person_submit(spec or self.spec(job))
        await self.until(lambda: self.faults.effects("adopt", native_id), f"{job} is adopted")
        await self.until(lambda: self.faults.checkpoints(native_id), f"{job} has a checkpoint")
        await self.runs_in(job, 1)
        return native_id

    async def submit(self, spec: JobSpec, cluster: str = "alpha") -> Handle:
        """A person submits through us."""
        return await self.client.start_workflow(
            Runbook.SUPERVISE,
            SuperviseInput(job=spec.job, cluster=cluster, spec=spec, by="ada"),
            id=job_workflow_id(spec.job),
            task_queue="runbooks",
        )

    async def native(self, native_id: str) -> NativeJob:
        return await _answered(lambda: self.alpha.job(native_id))

    def ops(self, *leave_out: str, target: str | None = None) -> list[str]:
        """Names of the mutations that really happened, in order."""
        return [e.op for e in self.faults.effects(target=target) if e.op not in leave_out]

    def attempts(self, native_id: str) -> tuple[str, ...]:
        """`restarts=N nodes=...` of each attempt that really started."""
        return tuple(e.detail for e in self.faults.effects("attempt", native_id))

    async def order(self, job: str, want: Action = Action.FAILOVER_IN_CLUSTER, by: str = "ada") -> None:
        """`runbook start failover JOB` or `restart`."""
        order = Order(want=want, by=by, reason="maintenance of the rack")
        await self.handle(job_workflow_id(job)).execute_update(Update.ORDER, order)

    async def nodes_of(self, job: str = "train") -> tuple[str, ...]:
        view = await self.view(job_workflow_id(job))
        assert view.ledger is not None
        assert view.ledger.last is not None
        return view.ledger.last.nodes

    async def runs_in(self, job: str, attempt: int) -> View:
        """Waits until the job's runbook watches that attempt."""

        async def there() -> View | None:
            view = await self.view(job_workflow_id(job))
            seen = view.ledger is not None and view.ledger.generation == attempt and view.step == "watching"
            return view if seen else None

        found = await self.until(there, f"{job} runs in attempt {attempt}")
        return cast(View, found)

    async def trains_again(self, job: str, native_id: str, attempts: int) -> View:
        """Waits until the ledger has that many attempts and the last one made a step; returns the job's view."""

        async def there() -> View | None:
            view = await self.view(job_workflow_id(job))
            ledger = view.ledger
            last = ledger.last if ledger else None
            done = last and last.generation == attempts and last.progress.step and view.step == "watching"
            return view if done else None

        view: View = await self.until(there, f"{job} trains in attempt {attempts}")
        assert (await self.native(native_id)).phase is Phase.RUNNING
        return view

    # -- nodes

    async def node(self, node: str) -> NodeFacts:
        return await _answered(lambda: self.alpha.node(node))

    async def heal(self, node: str, *lines: str, evidence: tuple[Evidence, ...] = ()) -> Handle:
        """Asks for a repair as the watch does, without telling any job."""
        found = tuple(e for line in lines for e in self.parsed(node, line)) or evidence
        return await self.client.start_workflow(
            Runbook.HEAL,
            HealInput(cluster="alpha", node=node, request=HealRequestNote(evidence=found, by="ada")),
            id=node_workflow_id("alpha", node),
            task_queue="runbooks",
        )

    def parsed(self, node: str, line: str, cluster: str = "alpha") -> tuple[Evidence, ...]:
        found = parse_any(line, cluster=cluster, node=node, seen_at=time.time()).evidence
        assert found, line
        return found

    async def report(self, node: str, line: str, cluster: str = "alpha") -> None:
        """`runbook evidence CLUSTER/NODE`: a line of the kernel's log."""
        await self.tell(*self.parsed(node, line, cluster), cluster=cluster)

    async def tell(self, *evidence: Evidence, cluster: str = "alpha") -> None:
        await self.client.get_workflow_handle(f"watch/{cluster}").signal(
            Signal.EVIDENCE, EvidenceBatch(evidence=evidence)
        )

    async def lose_gpu(self, node: str) -> None:
        """XID 79 on a node, and the watch hears of it."""
        await self.report(node, self.faults.gpu_lost(node))

    # -- runbooks

    def handle(self, workflow_id: str) -> Handle:
        return self.client.get_workflow_handle(workflow_id)

    async def view(self, workflow_id: str) -> View:
        view: View = await self.handle(workflow_id).query(VIEW, result_type=View)
        return view

    async def runs(self, workflow_id: str) -> bool:
        try:
            return (await self.handle(workflow_id).describe()).status is WorkflowExecutionStatus.RUNNING
        except RPCError:
            return False

    async def _known(self, workflow_id: str) -> bool:
        try:
            await self.handle(workflow_id).describe()
        except RPCError:
            return False
        return True

    async def at_step(self, workflow_id: str, *steps: str) -> View:
        async def there() -> View | None:
            try:
                view = await self.view(workflow_id)
            except RPCError:
                return None
            return view if view.step in steps else None

        found = await self.until(there, f"{workflow_id} is at {' or '.join(steps)}")
        return cast(View, found)

    async def result(self, workflow_id: str) -> Any:
        """The result of a runbook that runs or is about to start, an ending as its text; its failure is raised."""
        await self.until(lambda: self._known(workflow_id), f"{workflow_id} exists")
        return text_of(await asyncio.wait_for(self.handle(workflow_id).result(), PATIENCE))

    async def ended(self, workflow_id: str) -> WorkflowExecutionStatus:
        async def there() -> WorkflowExecutionStatus | None:
            try:
                status = (await self.handle(workflow_id).describe()).status
            except RPCError:
                return None
            return status if status is not WorkflowExecutionStatus.RUNNING else None

        found = await self.until(there, f"{workflow_id} has ended")
        return cast(WorkflowExecutionStatus, found)

    async def page(self, workflow_id: str) -> str:
        """What the Temporal UI shows as current details, Markdown."""
        metadata = await self.handle(workflow_id).query("__temporal_workflow_metadata")
        return str(metadata.current_details)

    async def reports(self, subject: str, kind: str | None = None) -> tuple[Report, ...]:
        """Stored reports of a subject, newest first."""
        store = await AsyncHistoryStore.open(sqlite_url(self.folder / "history.sqlite"))
        try:
            rows = await store.reports(subject)
        finally:
            await store.close()
        return tuple(Report.model_validate_json(r.report) for r in rows if kind in {None, r.kind})

    # -- people

    async def question(self, workflow_id: str) -> Question:
        """The open question of that id, or the newest one of a runbook."""

        async def there() -> Question | None:
            try:
                if "/ask/" in workflow_id:
                    view = await self.view(workflow_id)
                    return view.question if view.outcome is None else None
                view = await self.view(workflow_id)
            except RPCError:
                return None
            found = re.search(r"an answer to `([^`]+)`", view.waits_for)
            if found is None:
                return None
            try:
                return (await self.view(found[1])).question
            except RPCError:
                return None

        found = await self.until(there, f"{workflow_id} asks a person")
        return cast(Question, found)

    async def answer(
        self, question: Question, choice: Choice, by: str = "grace", *, changed: Mapping[str, object] | None = None
    ) -> Outcome:
        """Answers as a person does; `changed` spoils the statement."""
        said = make_answer(question, choice, by, "seen").model_copy(update=dict(changed or {}))
        return await self.give(said)

    async def give(self, said: Answer) -> Outcome:
        outcome: Outcome = await self.handle(said.question).execute_update(
            Update.ANSWER, said, result_type=Outcome, id=f"answer-{said.nonce}"
        )
        return outcome

    async def freeze(self, scope: str, update: Update = Update.FREEZE) -> None:
        """Returns once the worker knows it, too: what it read of a freeze counts for a moment (`FREEZE_FRESH`)."""
        order = FreezeOrder(by="ada", reason="maintenance")
        await self.handle(f"guard/{scope}").execute_update(update, order)
        if (runtime := self.runtime) is not None:

            async def known() -> bool:
                return (await runtime.freeze_of(scope) is not None) == (update is Update.FREEZE)

            await self.until(known, f"the worker knows the {update} of {scope}")

    # -- waiting

    async def until(self, look: Callable[[], Any], what: str, limit: float = PATIENCE) -> Any:
        """Looks until there is something and returns it; a failing worker ends it at once.

        A plain function is called in a thread and ever less often: the worker shares this loop with the test.
        """
        deadline, every = time.monotonic() + limit, 0.03
        while True:
            if found := await _seen(look):
                return found
            if self._worker is not None and self._worker.done():
                self._worker.result()
                raise AssertionError(f"the worker was stopped while the test waited: {what}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain: {what}\n{await self._scene()}")
            await asyncio.sleep(every)
            every = min(every * 1.3, 0.4)

    async def _scene(self) -> str:
        """What every runbook shows and what happened in the fleet: said when a wait was in vain."""
        told = []
        async for row in self.client.list_workflows():
            view = await self.view(row.id)
            state = f"{view.step}, waits for {view.waits_for}" if not view.result else view.result
            told.append(f"{row.id}: {state}\n  " + "\n  ".join(view.story))
        return "\n".join([*told, *map(str, self.faults.effects())])

    async def stays(self, look: Callable[[], Any], what: str, seconds: float = 1.5) -> None:
        """For what must not happen: true over the whole time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert await _seen(look), f"did not stay: {what}"
            await asyncio.sleep(0.2)

    # -- histories

    async def record(self, workflow_id: str, name: str) -> None:
        """Keeps the runbook's history for `test_determinism.py` when the environment asks for it."""
        if RECORDING in os.environ:
            history = await self.handle(workflow_id).fetch_history()
            write_history(history, name)


def text_of(result: Any) -> Any:
    """A job's or a node's runbook ends with an `Ending`; of that, its text."""
    return result["text"] if isinstance(result, dict) and set(result) == set(Ending.model_fields) else result


async def _seen(look: Callable[[], Any]) -> Any:
    if inspect.iscoroutinefunction(look):
        return await look()
    found = await asyncio.to_thread(look)
    return await found if inspect.isawaitable(found) else found


async def _answered(read: Callable[[], Awaitable[T]]) -> T:
    """Reads again while the controller is away."""
    while True:
        try:
            return await read()
        except TemporaryError:
            await asyncio.sleep(0.05)


def write_history(history: WorkflowHistory, name: str) -> None:
    """Writes it without the names of the machine and the processes that took part."""
    HISTORIES.mkdir(exist_ok=True)
    plain = _without_identity(json.loads(history.to_json()))
    (HISTORIES / f"{name}.json").write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")


def _without_identity(value: Any) -> Any:
    """The SDK calls a process `PID@HOST`; sticky queues are named after it."""
    if isinstance(value, dict):
        return {k: _without_identity(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_identity(v) for v in value]
    return re.sub(r"\b\d+@[\w.-]+", "recorded", value) if isinstance(value, str) else value


async def make_namespace(address: str, name: str) -> str:
    """A namespace of its own with our search attributes; takes about 40 ms."""
    client = await connect(address)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86400))
    )
    kinds = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    }
    wanted = AddSearchAttributesRequest(
        namespace=name, search_attributes={attribute: kinds[kind] for attribute, kind in ATTRIBUTES.items()}
    )
    for _ in range(100):
        try:
            await client.operator_service.add_search_attributes(wanted)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            await asyncio.sleep(0.05)  # its own cache does not know the new namespace yet
        else:
            return name
    raise AssertionError(f"the server never learned of the namespace {name}")


def _site(cluster: str, sites: Mapping[str, Path] | None) -> str:
    return f", site: at-{cluster}" if sites and cluster in sites else ""

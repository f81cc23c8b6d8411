"""What a scenario has in its hands: real clusters, the runbooks over them, the commands of people, and the truth.

Faults are verbs of the lab. What is asserted is what Slurm, the files and the processes show.
"""

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from activities.backends.factory import make_backend
from activities.backends.port import ClusterBackend
from activities.backends.slurm.backend import SlurmBackend
from activities.backends.slurm.commands import Finished
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore
from clients.connection import connect
from fleet.faults.parse import parse_any
from fleet.identity import RUNBOOKS_QUEUE, job_workflow_id
from fleet.model import NativeJob, NodeFacts, Phase
from fleet.orders import JobSpec
from fleet.policy import Policy, Step
from fleet.runbooks import EvidenceBatch, Runbook, Signal, SuperviseInput, View
from tests.clients.stage import XID_79
from tests.crash_slurm.paced_train import HURRY
from tests.real_stage import RealStage
from tests.slurm.lab import CHECK, LAB, TRAIN, Cluster
from tests.workflows.stage import make_namespace
from workers.worker import make_workers, start_watching, store_url

PACED = Path(__file__).parents[1] / "crash_slurm" / "paced_train.py"
Handle = WorkflowHandle[Any, Any]
Disturbance = Callable[[tuple[str, ...]], AbstractAsyncContextManager[None]]
LIMITS = {"settle": "1s", "in_place_delays": "[0s]", "checkpoint_grace": "20s", "run_timeout": "2m"}
PATIENCE = 60.0
"""Seconds in which a condition must come true; far more than it takes on an idle machine."""
ENDS_WITHIN = 180.0
"""The same for a runbook's end: a controller that forgot a reboot waits out its ResumeTimeout of 60 s first."""
WRITES = ("update", "hold", "release", "requeuehold", "create", "delete", "reboot")


def cluster_rows(lab: Cluster, *, power: bool = True, ours: Sequence[str] = (), site: bool = False) -> list[str]:
    """A cluster's lines in the fleet file."""
    hook = f"[{LAB}, --root, {lab.root}, power-%s, {lab.name}, '{{node}}']"
    rows = [f"  {lab.name}:", "    kind: slurm", f"    conf: {conf_of(lab, ours)}", "    transport: cli"]
    rows += [f"    check: [{sys.executable}, {CHECK}, --expect, '{{gpus}}']", f"    checkpoint_roots: [{lab.work}]"]
    rows += [f"    site: at-{lab.name}"] if site else []
    if power:
        rows += ["    power:", *(f"      '{word}': {hook % word}" for word in ("off", "on", "status"))]
    return rows


class Stage(RealStage):
    """One scenario's world."""

    patience = PATIENCE
    ends_within = ENDS_WITHIN
    look_every = 0.2

    def __init__(self, client: Client, folder: Path, labs: Sequence[Cluster]) -> None:
        super().__init__(client, folder)
        self.labs = {lab.name: lab for lab in labs}
        self.lab = labs[0]
        self.written: list[tuple[str, ...]] = []
        """Every command of ours that could change a cluster, in order."""
        self.disturb: Disturbance = lambda argv: nullcontext()
        """Surrounds each Slurm command of the worker."""
        self.runtime: Runtime | None = None
        self._working = AsyncExitStack()
        self._failed: asyncio.Task[None] | None = None

    # -- the house

    @classmethod
    async def open(cls, address: str, folder: Path, namespace: str, labs: Sequence[Cluster]) -> "Stage":
        return cls(await connect(address, await make_namespace(address, namespace)), folder, labs)

    def write_policy(
        self,
        *,
        power: bool = True,
        modes: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
        ours: Sequence[str] = (),
        more: str = "",
        sites: bool = False,
    ) -> None:
        """Every step automatic, with the changes given."""
        rows = ["version: 1", "clusters:"]
        for lab in self.labs.values():
            rows += cluster_rows(lab, power=power, ours=ours, site=sites)
        rows += ["sites:", *(f"  at-{n}: {{mount: {one.work}}}" for n, one in self.labs.items())] if sites else []
        all_modes = dict.fromkeys(map(str, Step), "auto") | dict(modes or {})
        rows += ["modes: {" + ", ".join(f"{k}: {v}" for k, v in all_modes.items()) + "}", "limits:"]
        rows += [f"  {k}: {v}" for k, v in (LIMITS | dict(limits or {})).items()]
        self.policy_file.write_text("\n".join([*rows, more]) + "\n")

    async def start_worker(self, *, sites: bool = False) -> None:
        """Runbooks, every cluster and its site, as the real worker wires them."""
        self.runtime = Runtime(
            policy_file=self.policy_file,
            client=self.client,
            make_backend=self._make_backend,
            store=await AsyncHistoryStore.open(store_url(self.policy_file, self.folder)),
            unsigned_ok=True,
        )
        self._working.push_async_callback(self.runtime.close)
        for worker in make_workers(
            self.runtime,
            tuple(self.labs),
            runbooks=True,
            sites=[f"at-{name}" for name in self.labs] if sites else (),
        ):
            await self._working.enter_async_context(worker)
        await start_watching(self.client, tuple(self.labs))

    async def stop_worker(self) -> None:
        await self._working.aclose()

    def _make_backend(self, name: str, policy: Policy, folder: Path) -> ClusterBackend:
        """The real adapter, polling more often, with every command seen."""
        plain = make_backend(name, policy, folder)
        assert isinstance(plain, SlurmBackend)
        backend = SlurmBackend(name, plain.settings.model_copy(update={"poll_interval": 0.5}))
        run = backend.commands.run

        async def seen(program: str, *args: str, **more: Any) -> Finished:
            argv = (program, *args)
            if program in {"sbatch", "scancel", "srun"} or (program == "scontrol" and args[0] in WRITES):
                self.written.append(argv)
            async with self.disturb(argv):
                return await run(program, *args, **more)

        backend.commands.run = seen  # type: ignore[method-assign]
        return backend

    async def close(self) -> None:
        """Ends the worker and every runbook."""
        try:
            await self.stop_worker()
        finally:
            async for row in self.client.list_workflows('ExecutionStatus="Running"'):
                try:
                    await self.client.get_workflow_handle(row.id).terminate()
                except RPCError:
                    continue

    # -- jobs

    def folder_of(self, job: str) -> Path:
        """The job's checkpoints."""
        return self.lab.work / f"ckpt-{job}"

    def spec(
        self,
        job: str = "train",
        *,
        nodes: int = 2,
        steps: int = 1000,
        total: int | None = None,
        step_time: float = 0.2,
        every: int = 10,
        tokens: str = "gpu-runbooks.io/supervise gpu-runbooks.io/checkpoint-signal=USR1",
        checked: bool = True,
        train: str = "",
        options: tuple[str, ...] = (),
        lab: Cluster | None = None,
    ) -> JobSpec:
        """A training of the lab. Each rank notes its restart count, its number and its exit code when it ends."""
        work = (lab or self.lab).work
        folder = work / f"ckpt-{job}"
        words = (
            f"--steps {steps} --step-time {step_time} --checkpoint-every {every} --checkpoint-dir {folder} {train}"
        )
        words += "" if checked else " --no-generation-check"
        note = f'echo "${{SLURM_RESTART_COUNT:-0}} $SLURM_PROCID $rc" >>{folder}.ends'
        rank = work / f"{job}.rank.sh"
        python = f"{sys.executable} {PACED} {TRAIN} {words}"
        rank.write_text(f"#!/bin/bash\ntrap ':' USR1 TERM\n{python} &\n{RANK_WAITS}{note}\nexit $rc\n")
        if tokens:
            tokens += f" gpu-runbooks.io/job={job} gpu-runbooks.io/total-steps={total or steps}"
            tokens += " gpu-runbooks.io/generation-check=yes" if checked else ""
        return JobSpec(
            job=job,
            name=job,
            script=f"#!/bin/bash\ntrap ':' USR1\nsrun --kill-on-bad-exit=1 bash {rank}\nexit $?\n",
            workdir=str(work),
            comment=f"my own words {tokens}".strip(),
            options=(f"--nodes={nodes}", "--ntasks-per-node=1", "--gres=gpu:8", f"--output={job}.out", *options),
        )

    async def sbatch(self, spec: JobSpec, lab: Cluster | None = None) -> str:
        """A researcher's plain `sbatch`, with Slurm's defaults; returns the JobId."""
        return await (lab or self.lab).person_submit(spec)

    async def train(self, job: str = "train", *, lab: Cluster | None = None, **words: Any) -> str:
        """Submits a job and waits until it is supervised, held and has saved once."""
        where = lab or self.lab
        native_id = await self.sbatch(self.spec(job, lab=where, **words), where)
        await self.trains(job, 1)

        async def saved() -> bool:
            native = await where.backend.job(native_id)
            return native.held and (await where.backend.progress(native_id, native.restarts)).saved is not None

        await self.until(saved, f"{job} is held and has a checkpoint")
        return native_id

    def hurry(self, job: str = "train") -> None:
        """From here on the job's steps take no time: nobody waits for its end."""
        self.folder_of(job).mkdir(exist_ok=True)
        (self.folder_of(job) / HURRY).touch()

    async def nodes_of(self, job: str) -> tuple[str, ...]:
        """Nodes of the attempt that the runbook knows as the last one."""
        view = await self.view(job_workflow_id(job))
        assert view.ledger is not None
        assert view.ledger.last is not None
        return view.ledger.last.nodes

    async def native(self, native_id: str) -> NativeJob:
        return await self.lab.backend.job(native_id)

    async def phase(self, native_id: str, phase: Phase) -> NativeJob:
        async def there() -> NativeJob | None:
            native = await self.native(native_id)
            return native if native.phase is phase else None

        return cast(NativeJob, await self.until(there, f"job {native_id} is {phase}"))

    def output(self, job: str) -> tuple[str, ...]:
        """All lines that the job printed, whatever attempt."""
        path = self.lab.work / f"{job}.out"
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    def ends(self, job: str) -> tuple[str, ...]:
        """`restart rank exit-code` of each rank that came to its end by itself."""
        path = Path(f"{self.folder_of(job)}.ends")
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    # -- nodes

    async def node(self, node: str) -> NodeFacts:
        return await self.lab.backend.node(node)

    async def fault(self, verb: str, node: str, *words: str) -> None:
        """A verb of the lab on one node."""
        await self.lab.lab(verb, self.lab.name, node, *words)

    async def scontrol(self, *words: str) -> str:
        """A person's `scontrol`."""
        return await self.lab.slurm("scontrol", *words)

    async def lose_gpu(self, node: str, lab: Cluster | None = None) -> None:
        """What a node agent says of XID 79."""
        cluster = (lab or self.lab).name
        found = parse_any(XID_79, cluster=cluster, node=node, seen_at=time.time()).evidence
        await self.client.get_workflow_handle(f"watch/{cluster}").signal(
            Signal.EVIDENCE, EvidenceBatch(evidence=found)
        )

    def log(self, name: str, lab: Cluster | None = None) -> str:
        """A log file of the lab."""
        where = lab or self.lab
        path = where.root / where.name / "log" / name
        return path.read_text() if path.exists() else ""

    # -- runbooks

    async def at_step(self, workflow_id: str, *steps: str) -> View:
        async def there() -> View | None:
            view = await self.view_if(workflow_id)
            return view if view and view.step in steps else None

        return cast(View, await self.until(there, f"{workflow_id} is at {' or '.join(steps)}"))

    async def submit(self, spec: JobSpec) -> Handle:
        """A submit through the runbook, without the command line."""
        return await self.client.start_workflow(
            Runbook.SUPERVISE,
            SuperviseInput(job=spec.job, cluster=self.lab.name, spec=spec, by="ada"),
            id=job_workflow_id(spec.job),
            task_queue=RUNBOOKS_QUEUE,
        )

    async def stories(self) -> str:
        """What every runbook told, and what Slurm, its hooks and our commands show, for a failure."""
        lines = [await super().stories()]
        for lab in self.labs.values():
            for what in ("jobs", "nodes"):
                try:
                    lines.append(await lab.slurm("scontrol", "--oneliner", "show", what))
                except AssertionError as error:  # its controller may be the one that died
                    lines.append(str(error))
            lines += self.log("hooks.log", lab).splitlines()
        lines += [" ".join(argv) for argv in self.written]
        return "\n".join(lines)

    # -- waiting

    async def stays(self, look: Callable[[], Any], what: str, seconds: float) -> None:
        """For what must not happen: true over the whole time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            assert await found if inspect.isawaitable(found) else found, f"did not stay: {what}"
            await asyncio.sleep(0.1)


def conf_of(lab: Cluster, ours: Sequence[str]) -> str:
    """The cluster's slurm.conf, or a copy beside it with other lines: what its reader does, nobody else does."""
    if not ours:
        return lab.settings.conf
    keys = {line.partition("=")[0] for line in ours}
    theirs = Path(lab.settings.conf).read_text().splitlines()
    copy = Path(lab.settings.conf).with_name("ours.conf")
    copy.write_text("\n".join([*ours, *(line for line in theirs if line.partition("=")[0] not in keys), ""]))
    return str(copy)


RANK_WAITS = """\
pid=$!
while wait $pid; rc=$?; kill -0 $pid 2>/dev/null; do :; done
"""
"""A shell's `wait` ends at each signal; the rank itself has got it too."""

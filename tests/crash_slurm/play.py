"""One recovery on real Slurm from submit to end, with one fault on the way, and what is left afterwards."""

import asyncio
import contextlib
import re
import sys
import time
from pathlib import Path

from fleet.faults.parse import parse_any
from fleet.identity import RUNBOOKS_QUEUE, TOKEN_PREFIX, job_workflow_id, node_workflow_id, watch_workflow_id
from fleet.model import NodeFacts, Value
from fleet.orders import JobSpec
from fleet.runbooks import EvidenceBatch, Runbook, Signal, SuperviseInput
from tests.crash.boundary import Case, Fault
from tests.crash.crew import Crew, crew
from tests.crash.nursery import Nursery
from tests.crash.play import XID
from tests.crash_slurm.paced_train import HURRY
from tests.crash_slurm.programs import LOST, write_forgetful_programs
from tests.runbooks_slurm.training import complete_of
from tests.slurm.lab import CHECK, LAB, TRAIN, Cluster, rank_pids
from workers.fleets import ALL_AUTO

STEPS = 200
EVERY = 3
"""Steps between two periodic checkpoints."""
PACED = Path(__file__).with_name("paced_train.py")
COUNTED = {
    "submit": r"_slurm_rpc_submit_batch_job: JobId={job} ",
    "requeue": r"Requeuing JobId={job}\b",
    "exclude": r"setting exc_nodes to \S+ for JobId={job}\b",
    "release": r"release hold on JobId={job} ",
    "start": r"(?:Allocate|Started) JobId={job} ",
    "reboot": r"reboot request queued for nodes {node}\b",
    "reserve": r"Created reservation=gpu-runbooks_\w+ users=root nodes={node} ",
    "delete reservation": r"_slurm_rpc_delete_reservation complete for gpu-runbooks_",
}
"""Effects in slurmctld's own log that happen once (submit is held, so it is released twice in all). A save may be
asked for again, a hold is a state, and a check runs again when it was cut off."""


class Ending(Value):
    """What Slurm and the runbooks show when all is over. Equal for a disturbed and an undisturbed run."""

    job: dict[str, object]
    nodes: dict[str, str]
    reservations: str
    effects: dict[str, int]
    hooks: dict[str, int]
    """Prologs and epilogs of the job on any node, and reboots of the sick one."""
    completions: tuple[str, ...]
    """States of the job in jobcomp's file."""
    attempts: tuple[str, ...]
    results: dict[str, str]
    runbooks: dict[str, str]
    steps: tuple[str, ...]


class Played(Value):
    """An ending and what may differ between two runs."""

    ending: Ending
    hit: bool
    lost: bool
    """An answer was really lost."""
    refused: bool
    """A worker that had been away refused to write."""
    generations_at_once: int
    """The most generations of ranks that were ever seen alive at the same time."""
    output: tuple[str, ...]
    saved: tuple[int, ...]
    """Steps of the first attempt's complete checkpoints; one that is stopped in a save says nothing of it."""
    order: tuple[str, ...]
    """Prologs and epilogs of the job, in time."""
    failed_tasks: tuple[str, ...]
    servers: int
    workers: int
    told: str
    """The workers' errors."""
    seconds: float


class Stage:
    """One case on a cluster that other cases use before and after."""

    def __init__(self, lab: Cluster, folder: Path, case: Case, number: int) -> None:
        self.lab = lab
        self.folder = folder
        self.case = case
        self.job = f"train-{number}"
        self.checkpoints = lab.work / self.job
        self.marks = {name: self._log(name).stat().st_size if self._log(name).exists() else 0 for name in LOGS}
        self.native = ""
        self.node = ""
        self.most = 0

    def _log(self, name: str) -> Path:
        return self.lab.root / self.lab.name / "log" / name

    def new_in(self, name: str) -> str:
        """What a log of the lab has got since the case began."""
        with self._log(name).open() as file:
            file.seek(self.marks[name])
            return file.read()

    @property
    def failover(self) -> str:
        return f"{job_workflow_id(self.job)}/failover/2"

    def write_fleet(self) -> None:
        """The fleet file, with programs that can lose an answer where the case wants one lost."""
        hook = f"[{LAB}, --root, {self.lab.root}, power-%s, {self.lab.name}, '{{node}}']"
        lines = [
            f"version: 1\nclusters:\n  {self.lab.name}:\n    kind: slurm\n    conf: {self.lab.settings.conf}",
            f"    check: [{sys.executable}, {CHECK}, --expect, '{{gpus}}']",
            "    power:",
            *(f"      '{word}': {hook % word}" for word in ("off", "on", "status")),
        ]
        if self.case.fault is Fault.ANSWER_LOST:
            lines.append(f"    bin_dir: {write_forgetful_programs(self.folder)}")
        (self.folder / "fleet.yaml").write_text("\n".join(lines) + "\n" + ALL_AUTO)

    def spec(self) -> JobSpec:
        words = (
            "supervise",
            f"job={self.job}",
            "checkpoint-signal=USR1",
            f"total-steps={STEPS}",
            "generation-check=yes",
        )
        train = f"{sys.executable} {PACED} {TRAIN} --steps {STEPS} --step-time 0.4 --checkpoint-every {EVERY}"
        script = (
            f"#!/bin/bash\ntrap ':' USR1\nsrun --kill-on-bad-exit=1 {train} --checkpoint-dir {self.checkpoints}\n"
        )
        return JobSpec(
            job=self.job,
            name="train",
            script=script + "exit $?\n",
            workdir=str(self.lab.work),
            comment=" ".join(TOKEN_PREFIX + word for word in words),
            options=("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", f"--output={self.job}.out"),
        )

    async def begin(self, made: Crew) -> None:
        """Submits, waits for a checkpoint of the supervised job, reports an XID 79 of its second node."""
        cluster = self.lab.name
        await made.client.start_workflow(
            Runbook.SUPERVISE,
            SuperviseInput(job=self.job, cluster=cluster, spec=self.spec(), by="ada"),
            id=job_workflow_id(self.job),
            task_queue=RUNBOOKS_QUEUE,
        )

        async def first() -> tuple[str, str] | None:
            view = await made.view(job_workflow_id(self.job))
            last = view.ledger.last if view and view.ledger else None
            saved = last and (await self.lab.backend.progress(last.native_id, 0)).saved
            return (last.native_id, last.nodes[1]) if last and saved else None

        self.native, self.node = await made.until(first, "a first attempt with a checkpoint")
        parsed = parse_any(XID, cluster=cluster, node=self.node, seen_at=time.time())
        watch = made.client.get_workflow_handle(watch_workflow_id(cluster))
        await watch.signal(Signal.EVIDENCE, EvidenceBatch(evidence=parsed.evidence))

    async def count_generations(self) -> None:
        """Looks at the ranks' processes, whatever Slurm believes, until it is cancelled."""
        while True:
            if self.native:
                alive = await asyncio.to_thread(generations, self.native, self.lab.settings.conf)
                self.most = max(self.most, len(alive))
            await asyncio.sleep(0.25)


LOGS = ("slurmctld.log", "hooks.log", "jobcomp.txt")


def generations(native: str, conf: str) -> set[str]:
    """Restart counts of the job's living ranks."""
    found = set()
    for pid in rank_pids(native, conf):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            count = next((w for w in words if w.startswith(b"SLURM_RESTART_COUNT=")), b"SLURM_RESTART_COUNT=0")
            found.add(count.decode())
    return found


async def play(lab: Cluster, folder: Path, case: Case, number: int, nursery: Nursery) -> Played:
    """Runs the case on `lab` and leaves the cluster as it was."""
    began = time.monotonic()
    stage = Stage(lab, folder, case, number)
    stage.write_fleet()
    before = {n.node: n for n in await lab.backend.nodes(0)}
    async with crew(folder, case, nursery) as made:
        counting = asyncio.create_task(stage.count_generations())
        try:
            await stage.begin(made)
            await made.until(lambda: made.is_over(stage.failover), "the end of the failover")
            await made.recovery_is_over()
            (stage.checkpoints / HURRY).touch()
            await made.until(lambda: made.is_over(job_workflow_id(stage.job)), "the end of the job")
            heal = node_workflow_id(lab.name, stage.node)
            await made.until(lambda: made.is_over(heal), "the node's return")
        finally:
            counting.cancel()
        return await _look(made, stage, before, began)


async def _look(made: Crew, stage: Stage, before: dict[str, NodeFacts], began: float) -> Played:
    lab, job, node = stage.lab, stage.native, stage.node
    ids = (job_workflow_id(stage.job), node_workflow_id(lab.name, node))
    views = {i: await made.until(lambda i=i: made.view(i), f"the view of {i}") for i in ids}  # type: ignore[misc]
    log = (stage.folder / "worker.log").read_text()
    ledger = views[ids[0]].ledger
    assert ledger is not None
    native = await lab.backend.job(job)
    hooks = re.findall(rf"^\S+ (prolog|epilog)  node=(\S+) job={job} ", stage.new_in("hooks.log"), re.MULTILINE)
    told = stage.new_in("slurmctld.log")
    order = tuple(f"{kind} {where}" for kind, where in hooks)
    names = {stage.job: "JOB", lab.name: "CLUSTER"}
    ending = Ending(
        job=native.model_dump(include={"phase", "held", "restarts", "excluded", "required", "adopted", "exit_code"}),
        nodes={n.node: _state(n, before[n.node]) for n in await lab.backend.nodes(0)},
        reservations=await lab.slurm("scontrol", "--oneliner", "show", "reservations"),
        effects={
            name: len(re.findall(pattern.format(job=job, node=node), told)) for name, pattern in COUNTED.items()
        },
        hooks={
            **{kind: len([line for line in order if line.startswith(kind)]) for kind in ("prolog", "epilog")},
            "reboot": len(re.findall(rf" reboot  node={node} ", stage.new_in("hooks.log"))),
        },
        completions=tuple(
            re.findall(rf"^JobId={job} .*JobState=(\S+)", stage.new_in("jobcomp.txt"), re.MULTILINE),
        ),
        attempts=tuple(
            f"{a.generation} {a.rung} {a.restarts} {len(a.nodes)} nodes"
            f"{' with the sick one' if node in a.nodes else ''} {a.cause}"
            for a in ledger.attempts
        ),
        results={i: view.result for i, view in views.items()},
        runbooks=await made.runbooks(),
        steps=await made.steps_of(stage.failover),
    )
    return Played(
        ending=Ending.model_validate_json(_renamed(ending.model_dump_json(), names)),
        hit=made.hit() > 0,
        lost=(stage.folder / LOST).exists(),
        refused="another one may have its step" in log,
        generations_at_once=stage.most,
        output=tuple((lab.work / f"{stage.job}.out").read_text().splitlines()),
        saved=tuple(complete_of(stage.checkpoints, "0.0")),
        order=order,
        failed_tasks=await made.failed_tasks(),
        servers=made.started["server"],
        workers=made.started["worker"],
        told="\n".join(line for line in log.splitlines() if '"level": "info"' not in line),
        seconds=time.monotonic() - began,
    )


def _state(now: NodeFacts, before: NodeFacts) -> str:
    booted = "booted again" if now.booted_at > before.booted_at + 2 else "same boot"
    return f"{now.state} {booted} {now.gpus} {now.reason} {now.op} {now.drained} {now.reserved_by} {now.jobs}"


def _renamed(text: str, names: dict[str, str]) -> str:
    """The same words whatever the job and the cluster are called."""
    for name, plain in names.items():
        text = re.sub(rf"\b{name}(?=\b|\d)", plain, text)
    return text

"""One fleet file and one worker for a real Slurm cluster and a real Kubernetes cluster, side by side on one machine.

Both live in the network namespace of the Kubernetes lab. A person speaks of jobs and nodes of both in the same words.
"""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from clients.embedded import ServerInfo
from clients.errors import Exit
from fleet.ledger import Attempt, Rung
from fleet.model import Phase
from tests.clients.stage import XID_79, Ran
from tests.kubernetes import lab as k8s
from tests.require import missing
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_slurm.stage import cluster_rows
from tests.runbooks_slurm.training import complete_of
from tests.slurm import lab as slurm

_numbers = itertools.count(1)
OWN_ROOT = "of-tour"
"""Folder of that job's checkpoints on Kubernetes; on Slurm it is named otherwise."""
JOB = "gamma/training/job1"
"""A job on Kubernetes as a person names it."""


class MixedStage(Stage):
    """A Kubernetes stage with a Slurm cluster beside it."""

    slurm: slurm.Cluster
    """Set on the class before a stage is opened."""
    sites = ("at-alpha", "at-gamma")

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.slurm.name, self.lab.name)

    def other_clusters(self) -> list[str]:
        return cluster_rows(self.slurm, site=True)

    def write_policy(self, **limits: str) -> None:
        """Each cluster's shared folder is a site of its own."""
        super().write_policy(**limits)
        text = self.policy_file.read_text().replace(
            "    kind: kubernetes\n", "    kind: kubernetes\n    site: at-gamma\n"
        )
        mounts = {"at-alpha": self.slurm.work, "at-gamma": self.lab.work}
        rows = [f"  {site}: {{mount: {path}}}" for site, path in mounts.items()]
        self.policy_file.write_text("\n".join([text, "sites:", *rows]) + "\n")

    async def job1(self, namespace: str = "training", **spec: object) -> None:
        """A job that does not ask for supervision, of a name that others use too."""
        made = self.lab.training_job("job1", **spec)
        made["metadata"]["namespace"] = namespace
        await self.lab.apply(made)


@pytest.fixture
async def mixed(temporal_server: ServerInfo, tmp_path: Path) -> AsyncIterator[MixedStage]:
    """Three nodes each; nothing of either is left afterwards. Slurm comes second: it looks its own address up, which
    the C library refuses in a network that has no interface but loopback."""
    for name, why in (("kubernetes", k8s.why_not()), ("slurm", slurm.why_not())):
        if why is not None:
            missing(name, why)
    async with k8s.cluster("gamma", nodes=3) as gamma, slurm.cluster("alpha", nodes=3, requeue=120) as alpha:
        MixedStage.slurm = alpha
        namespace = f"mixed-{next(_numbers)}"
        made = await MixedStage.open(temporal_server.address, tmp_path, namespace, gamma)
        assert isinstance(made, MixedStage)
        try:
            await made.start_worker()
            await gamma.kubectl("create", "namespace", "training")
            yield made
        finally:
            await made.close()


async def test_a_job_on_each_cluster_is_moved_at_the_same_time_and_both_names_are_understood(
    mixed: MixedStage,
) -> None:
    spec = mixed.slurm.training_spec("first", tokens="gpu-runbooks.io/job=first")
    first = await mixed.slurm.person_submit(spec)
    await mixed.job1()
    native_id = "job/training/job1"
    await mixed.trains("first", 1)
    await mixed.until(lambda: steps(mixed, native_id), "job1 trains")
    assert not (await mixed.backend.job(native_id)).adopted

    plan = await mixed.cli("start", "failover", JOB, "--reason", "a try", "--dry-run", "-o", "json")
    assert plan.json["action"] == "failover_in_cluster", plan.err
    ordered = await mixed.cli("start", "failover", JOB, "--reason", "it is slow there", "-o", "json")
    assert ordered.code == 0, ordered.err
    on_slurm = await mixed.slurm.backend.job(first)
    sent = await mixed.cli("evidence", f"alpha/{on_slurm.nodes[1]}", "-", stdin=XID_79)
    assert sent.code == 0, sent.err

    job = ordered.json["id"].removeprefix("job/")
    await mixed.trains("first", 2)
    await mixed.trains(job, 2)
    moved, again = await mixed.slurm.backend.job(first), await mixed.backend.job(native_id)
    assert (moved.phase, moved.restarts) == (Phase.RUNNING, 1)
    assert on_slurm.nodes[1] not in moved.nodes
    assert (again.phase, again.restarts, again.held) == (Phase.RUNNING, 1, True)
    assert await mixed.result(f"node/alpha/{on_slurm.nodes[1]}") == "repaired, checked and back at work"
    await each_command_takes_the_name(mixed, job)


async def steps(mixed: MixedStage, native_id: str) -> bool:
    return (await mixed.backend.progress(native_id, 0)).saved is not None


async def each_command_takes_the_name(mixed: MixedStage, job: str) -> None:
    """Those that look, then those that end it."""
    node = mixed.lab.node(3)
    heal = ("start", "heal", f"gamma/{node}", "--reason", "x", "--dry-run")
    says(await mixed.cli("describe", JOB), Exit.DONE, f"job/{job}")
    says(await mixed.cli("watch", "gamma/job1", "--timeout", "1s"), Exit.TIMEOUT)
    says(await mixed.cli("logs", "gamma/job/training/job1"), Exit.DONE, "step ")
    says(await mixed.cli("report", JOB, "-o", "name"), Exit.DONE, f"job/{job}")
    says(await mixed.cli("list", "--cluster", "gamma", "-o", "name"), Exit.DONE, f"job/{job}")
    assert "adopted and held" in (await mixed.cli("doctor", JOB, "-o", "json")).out
    says(await mixed.cli("approve", JOB, "--reason", "x"), Exit.FAILED, f"no question of {JOB} is open")
    says(await mixed.cli("start", "restart", JOB, "--reason", "x", "--dry-run"), Exit.DONE, f"job/{job}")
    says(await mixed.cli(*heal), Exit.DONE, f"node/gamma/{node}")
    says(await mixed.cli("why", f"gamma/{node}"), Exit.DONE, node)

    await mixed.job1("default", suspend=True)
    several = ("2 jobs, choose one by its id", "gamma/job/default/job1", "gamma/job/training/job1")
    says(await mixed.cli("describe", "gamma/job1"), Exit.USAGE, *several)
    says(await mixed.cli("start", "failover", "gamma/job1", "--reason", "x"), Exit.USAGE, *several)
    says(await mixed.cli("describe", "gamma/training/nope"), Exit.USAGE, "gamma has no job 'training/nope'")
    says(await mixed.cli("logs", "gamma/training/nope"), Exit.USAGE, "no job 'gamma/training/nope'")
    says(await mixed.cli("describe", "delta/training/job1"), Exit.USAGE, "no cluster 'delta'", "alpha, gamma")
    says(await mixed.cli("start", "heal", "gamma/nope", "--reason", "x"), Exit.USAGE, "no node 'nope' in gamma", node)

    ended = await mixed.cli("cancel", JOB, "--reason", "enough", "-o", "json")
    assert (ended.json["id"], ended.json["status"]) == (f"job/{job}", "cancelled"), ended.err
    back = await mixed.cli("release", JOB, "--reason", "enough", "-o", "json")
    assert back.json["subject"] == f"job/{job}", back.err
    assert not (await mixed.backend.job("job/training/job1")).held


def says(ran: Ran, code: int, *words: str) -> None:
    assert ran.code == code, (ran.out, ran.err)
    for word in words:
        assert word in ran.out + ran.err, (word, ran.out, ran.err)


async def test_a_manifest_is_submitted_to_its_cluster_by_the_same_command_as_a_script(mixed: MixedStage) -> None:
    manifest, script = mixed.folder / "train.yaml", mixed.folder / "train.sh"
    made = mixed.lab.training_job("sub-k")
    made["metadata"]["namespace"] = "training"
    manifest.write_text(yaml.safe_dump(made))
    spec = mixed.slurm.training_spec("sub-s")
    script.write_text(spec.script)
    options = [f"--option={word}" for word in spec.options]
    says(await mixed.cli("submit", "gamma", str(script)), Exit.USAGE, "gamma takes a manifest")
    says(await mixed.cli("submit", "alpha", str(manifest)), Exit.USAGE, "alpha takes a batch script")
    says(await mixed.cli("submit", "gamma", str(manifest), *options), Exit.USAGE, "write it into the manifest")
    assert not [name for name in await mixed.runbooks() if name.startswith("job/")], "nothing was started"
    says(await mixed.cli("submit", "gamma", str(manifest), "--job", "sub-k"), Exit.DONE, "job/sub-k started")
    says(await mixed.cli("submit", "alpha", str(script), "--job", "sub-s", *options), Exit.DONE, "job/sub-s started")
    for job in ("sub-k", "sub-s"):
        await mixed.trains(job, 1)
    assert (await mixed.backend.job("job/training/sub-k")).phase is Phase.RUNNING


async def test_a_job_moves_from_slurm_to_kubernetes_and_back_each_time_from_its_newest_checkpoint(
    mixed: MixedStage,
) -> None:
    """One job file, a template for each kind; a person orders the moves."""
    mixed.write_policy(across_tries="5")
    root = mixed.slurm.work / "tour"
    for node in (1, 2, 3):
        await mixed.lab.kubectl("cordon", mixed.lab.node(node))  # so that it begins on Slurm
    submitted = await mixed.cli("submit", str(write_tour(mixed, root)), "-o", "json")
    assert submitted.code == 0, submitted.err
    await mixed.trains("tour", 1)
    first = (await attempts(mixed))[-1]
    assert first.cluster == "alpha"
    await mixed.until(lambda: complete_of(root, "0.0"), "it has a checkpoint")
    for node in (1, 2, 3):
        await mixed.lab.kubectl("uncordon", mixed.lab.node(node))

    await move(mixed, "gamma", 2)
    there = mixed.lab.work / OWN_ROOT
    second = (await attempts(mixed))[-1]
    assert (second.cluster, second.rung) == ("gamma", Rung.ACROSS_CLUSTERS)
    assert second.progress.resumed_from == complete_of(root, "0.0")[-1]
    assert not slurm.rank_pids(first.native_id, mixed.slurm.settings.conf)
    assert await mixed.lab.ranks_alive(OWN_ROOT) == 2
    await mixed.until(lambda: complete_of(there, "1.0"), "it has a checkpoint on Kubernetes")

    await move(mixed, "alpha", 3)
    third = (await attempts(mixed))[-1]
    assert (third.cluster, third.native_id != first.native_id) == ("alpha", True)
    assert third.progress.resumed_from == complete_of(there, "1.0")[-1]
    assert await mixed.lab.ranks_alive(OWN_ROOT) == 0
    assert (await mixed.slurm.backend.job(first.native_id)).phase is Phase.CANCELLED
    gone = (await mixed.backend.job(second.native_id)).phase
    assert gone in {Phase.CANCELLED, Phase.ABSENT}, gone


async def attempts(mixed: MixedStage) -> tuple[Attempt, ...]:
    view = await mixed.view("job/tour")
    assert view.ledger is not None
    return view.ledger.attempts


async def move(mixed: MixedStage, to: str, generation: int) -> None:
    """`runbook start transfer`, until it trains there and what it left is over."""
    ordered = await mixed.cli("start", "transfer", "tour", "--to", to, "--reason", "a tour")
    assert ordered.code == 0, ordered.err

    async def done() -> bool:
        view = await mixed.view_if("job/tour")
        last = view.ledger.last if view and view.ledger else None
        here = last is not None and last.cluster == to and last.generation == generation and last.progress.step
        return bool(here) and view is not None and view.step == "watching"

    await mixed.until(done, f"it trains on {to}")
    await mixed.until(lambda: left_nothing(mixed), "what it left is over")


async def left_nothing(mixed: MixedStage) -> bool:
    view = await mixed.view("job/tour")
    return any("which it left, " in line and "not ended" not in line for line in view.story[-3:])


def write_tour(mixed: MixedStage, root: Path) -> Path:
    """The job file and its templates."""
    mixed.folder.joinpath("tour.sh").write_text(
        "#!/bin/bash\n#SBATCH --ntasks-per-node=1 --gres=gpu:8 --output=tour.out\n"
        f"srun --kill-on-bad-exit=1 python3 {slurm.TRAIN} --steps 100000 --step-time 0.1 --checkpoint-every 20 "
        f'--checkpoint-dir "${{GPU_RUNBOOKS_CHECKPOINT:-{root}}}"\n'
    )
    made = mixed.lab.training_job("tour")
    made["metadata"]["namespace"] = "training"
    [rank] = made["spec"]["template"]["spec"]["containers"]
    rank["args"] = [word for word in rank["args"] if word != "--no-generation-check"]
    rank["args"][rank["args"].index("--checkpoint-dir") + 1] = "$(GPU_RUNBOOKS_CHECKPOINT)"
    rank["env"].append({"name": "GPU_RUNBOOKS_CHECKPOINT", "value": "told when it is submitted"})
    mixed.folder.joinpath("tour-pods.yaml").write_text(yaml.safe_dump(made))
    file = mixed.folder / "tour.yaml"
    file.write_text(
        "version: 1\ntemplates: {slurm: tour.sh, kubernetes: tour-pods.yaml}\nnodes: 2\ngpus_per_node: 8\njob: tour\n"
        f"clusters: {{alpha: {{}}, gamma: {{checkpoint: {mixed.lab.work / OWN_ROOT}}}}}\n"
        f"checkpoint: {root}\nworkdir: {mixed.slurm.work}\ntotal_steps: 100000\n"
        "generation_check: true\ntransfer: true\n"
    )
    return file

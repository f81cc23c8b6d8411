"""JOB.yaml and its templates: what is wrong is told with file and line; what is right is one job anywhere."""

import pytest

from fleet.errors import InvalidInputError
from fleet.job_file import Template, parse_job, wish_of
from fleet.model import Room
from fleet.placing import PlaceWish

SLURM = "#!/bin/bash\n#SBATCH --nodes=4 --gres=gpu:h100:8\n#SBATCH -A ml\nsrun train\n#SBATCH --nodes=9\n"
MANIFEST = """\
apiVersion: batch/v1
kind: Job
metadata: {namespace: training}
spec:
  parallelism: 4
  completions: 4
  template:
    spec:
      containers:
        - name: main
          resources: {limits: {nvidia.com/gpu: 8}}
"""
HEAD = "version: 1\nnodes: 4\ntemplates: {slurm: train.sbatch, kubernetes: train.k8s}\n"


def wish(more: str = "", slurm: str = SLURM, manifest: str = MANIFEST) -> PlaceWish:
    return wish_of(
        parse_job(HEAD + more, "JOB.yaml"),
        {"slurm": Template("train.sbatch", slurm), "kubernetes": Template("train.k8s", manifest)},
        job="llama-x",
        name="llama",
        comment="words",
        workdir="/home/ada",
    )


def wrong(more: str = "", **templates: str) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        wish(more, **templates)
    return str(caught.value).splitlines()


def test_one_file_becomes_a_spec_for_each_kind_of_cluster() -> None:
    found = wish(
        "gpu_models: [H100]\nmax_domains: 1\nuser: ada\nclusters: {alpha: {options: [--partition=big]}, gamma: {}}\n"
    )

    alpha, gamma = found.spec("alpha", "slurm"), found.spec("gamma", "kubernetes")
    assert (alpha.job, alpha.name, alpha.script, alpha.user) == ("llama-x", "llama", SLURM, "ada")
    assert alpha.options == ("--nodes=4", "--switches=1", "--partition=big")
    assert (gamma.script, gamma.options, gamma.user) == (MANIFEST, (), None)
    assert alpha.comment == gamma.comment == "words"
    assert (found.request.nodes, found.request.gpus_per_node, found.request.gpu_models) == (4, 8, ("H100",))


def test_the_quotas_that_bind_are_those_of_the_account_and_the_namespace_that_the_templates_name() -> None:
    found = wish("clusters: {alpha: {}, beta: {account: vision}, gamma: {}}\n")

    scopes = [found.scope("alpha", "slurm"), found.scope("beta", "slurm"), found.scope("gamma", "kubernetes")]
    assert scopes == ["ml", "vision", "training"]
    assert wish(manifest=MANIFEST.replace("{namespace: training}", "{name: x}")).scope("g", "kubernetes") == "default"


@pytest.mark.parametrize(
    ("more", "cluster", "kind", "why"),
    [
        ("", "alpha", "sim", "the job has no template for sim"),
        ("clusters: {beta: {}, gamma: {}}\n", "alpha", "slurm", "the job names other clusters: beta, gamma"),
    ],
)
def test_a_cluster_that_the_job_does_not_want_is_out_and_needs_no_room(
    more: str, cluster: str, kind: str, why: str
) -> None:
    offer = wish(more).offer(cluster, kind, None)

    assert offer.lacks == (why,)


def test_a_dataset_is_there_or_out_of_reach() -> None:
    found, room = wish("dataset_on: [alpha]\n"), Room(cluster="alpha")

    here, away = found.offer("alpha", "slurm", room).dataset, found.offer("beta", "slurm", room).dataset
    assert here is not None
    assert away is not None
    assert (here.there, away.there, away.seconds) == (True, False, None)
    assert wish().offer("beta", "slurm", room).dataset is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("node: 2\n", "JOB.yaml:4: unknown key 'node'; allowed: "),
        ("gpus_per_node: eight\n", "JOB.yaml:4: gpus_per_node: must be a whole number, not 'eight'"),
        ("start_within: 15\n", "JOB.yaml:4: start_within: 15 has no unit; say the unit: 15s"),
        (
            "clusters: {alpha: {option: [-p]}}\n",
            "JOB.yaml:4: unknown key 'option' under clusters.alpha; allowed: options",
        ),
        ("checkpoint: ckpt\n", "JOB.yaml:4: checkpoint: "),
        ("clusters: {alpha: {checkpoint: ckpt}}\n", "JOB.yaml:4: clusters.alpha.checkpoint: "),
        ("clusters: {alpha: {checkpoint: /ckpt/a}}\n", "JOB.yaml:1: the checkpoint of alpha needs a `checkpoint` of"),
        ("checkpoint_signal: HUP\n", "JOB.yaml:4: checkpoint_signal: "),
        ("max_domains: 0\n", "JOB.yaml:4: max_domains: "),
        ("nodes: 5\n", "JOB.yaml:4: key 'nodes' is given twice; the first is on line 2"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(more: str, message: str) -> None:
    (line,) = wrong(more)

    assert line.startswith(message)


def test_an_unknown_kind_of_cluster_is_told_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_job("version: 1\ntemplates: {slrum: x}\n", "JOB.yaml")

    assert str(caught.value) == (
        "JOB.yaml:2: unknown key 'slrum' under templates; allowed: slurm, kubernetes, sim; did you mean 'slurm'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JOB.yaml:1: the file is empty; it needs at least version and templates"),
        ("- a\n", "JOB.yaml:1: the file must hold keys and values (version: 1, templates: ...)"),
        ("version: 1\n", "JOB.yaml:1: key 'templates' is missing"),
        ("version: 1\ntemplates: {}\n", "JOB.yaml:2: templates: is empty; it needs at least one entry"),
    ],
)
def test_a_file_that_is_no_job_says_why(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_job(text, "JOB.yaml")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (SLURM.replace("--nodes=4", "--nodes=2"), "train.sbatch:2: 2 nodes; the job file says 4"),
        (SLURM.replace("--nodes=4", "-N 2"), "train.sbatch:2: 2 nodes; the job file says 4"),
        (SLURM.replace("--nodes=4", "-N2"), "train.sbatch:2: 2 nodes; the job file says 4"),
        (SLURM.replace("gpu:h100:8", "gpu:4,nic:1"), "train.sbatch:2: 4 GPUs a node; the job file says 8"),
        (SLURM.replace("--gres=gpu:h100:8", "--gpus-per-node=h100:4"), "train.sbatch:2: 4 GPUs a node; the job"),
        (
            SLURM.replace("-A ml", '--comment="open'),
            "train.sbatch:3: '#SBATCH --comment=\"open': No closing quotation",
        ),
        ("srun train\n", "train.sbatch:1: a batch script begins with #! and an interpreter"),
    ],
)
def test_a_script_that_says_another_job_is_told_with_its_line(script: str, message: str) -> None:
    (line,) = wrong(slurm=script)

    assert line.startswith(message)


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("parallelism: 4", "parallelism: 2", "train.k8s:5: parallelism is 2; the job file says 4 nodes"),
        ("  completions: 4\n", "", "train.k8s:1: completions is missing; the job file says 4 nodes"),
        ("gpu: 8", "gpu: 4", "train.k8s:9: its pod has 4 nvidia.com/gpu; the job file says 8 a node"),
        (
            "gpu: 8",
            "gpu: '8'}}\n        - resources: {limits: {nvidia.com/gpu: 1",
            "train.k8s:9: its pod has 9 nvidia",
        ),
        ("kind: Job\n", "", "train.k8s:1: key 'kind' is missing"),
        ("metadata: {namespace: training}", "metadata: x", "train.k8s:3: 'metadata' must hold keys and values"),
        ("  parallelism: 4", " parallelism: [", "train.k8s:7: not readable as YAML: "),
        (MANIFEST, "- a\n", "train.k8s:1: a manifest is one object, such as a batch/v1 Job"),
        (MANIFEST, MANIFEST + "---\n" + MANIFEST, "train.k8s:12: not readable as YAML: "),
    ],
)
def test_a_manifest_that_says_another_job_is_told_with_its_line(was: str, now: str, message: str) -> None:
    (line,) = wrong(manifest=MANIFEST.replace(was, now))

    assert line.startswith(message)


def test_everything_wrong_in_all_templates_is_told_at_once() -> None:
    lines = wrong(
        slurm=SLURM.replace("--nodes=4", "--nodes=2"), manifest=MANIFEST.replace("parallelism: 4", "parallelism: 3")
    )

    assert [line.partition(" ")[0] for line in lines] == ["train.sbatch:2:", "train.k8s:5:"]


def test_kinds_with_parts_of_several_sizes_are_left_to_the_trial() -> None:
    jobset = MANIFEST.replace("batch/v1", "jobset.x-k8s.io/v1alpha2").replace("kind: Job", "kind: JobSet")

    assert wish(manifest=jobset.replace("parallelism: 4", "parallelism: 3")).templates["kubernetes"].startswith("api")


def test_templates_that_would_fill_histories_are_refused() -> None:
    (line,) = wrong(slurm=SLURM + "# x\n" * 40_000)

    assert "more than 131072 characters together" in line

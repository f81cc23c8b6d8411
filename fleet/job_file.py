"""`JOB.yaml`: one job with a template for each kind of cluster. Strict; what is wrong is told with file and line.

The templates are checked for what the file says about the job: nodes and GPUs that differ are an error here and not a
job of another size on another cluster. Whether a scheduler takes them, only its own trial can tell.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fleet.errors import InvalidInputError
from fleet.model import Name
from fleet.placement import Request
from fleet.placing import ClusterWords, PlaceWish
from fleet.policy_errors import Path, Problem
from fleet.policy_file import Words, parse_file, read_yaml, told
from fleet.policy_types import AbsolutePath, Duration, Strict
from fleet.stock import dataset_of

Kind = Literal["slurm", "kubernetes", "sim"]
LONGEST = 131_072
"""Characters of all templates together: they travel in the history of each of the job's runbooks."""
DEPTH = 32
"""Levels of a manifest; a JobSet with an affinity has 17."""
GPU = "nvidia.com/gpu"


class ClusterPart(Strict):
    """What holds on one cluster only."""

    options: tuple[str, ...] = ()
    """Further options of its batch scheduler, e.g. `[--partition=h100]`. Not for Kubernetes."""
    account: str = ""
    """Account that the job has there, for its quota; by default that of the script. Not for Kubernetes."""
    checkpoint: AbsolutePath | None = None
    """Checkpoint root of the job there. Default: where the cluster's storage has the common one."""


class JobFile(Strict):
    """The whole of `JOB.yaml`."""

    version: Literal[1]
    """Version of the file's shape, 1."""
    templates: Mapping[Kind, str] = Field(min_length=1)
    """Kind of cluster -> file, relative to this one: a batch script for slurm, a manifest for kubernetes."""
    nodes: int = Field(default=1, ge=1, le=100_000)
    """Whole nodes. Default 1."""
    gpus_per_node: int = Field(default=8, ge=0, le=64)
    """GPUs of each node. Default 8."""
    gpu_models: tuple[str, ...] = ()
    """Any of these, e.g. `[H100, H200]`. Default: any model."""
    max_domains: int | None = Field(default=None, ge=1)
    """Switches or blocks that it may be spread over. Default: any number."""
    clusters: Mapping[Name, ClusterPart] = {}
    """Only these clusters, with what holds there. Default: every cluster with a template."""
    dataset_on: tuple[Name, ...] | None = None
    """Clusters that hold the job's dataset; without `dataset` it goes to no other. Default: it names no dataset."""
    dataset: AbsolutePath | None = None
    """Manifest of the dataset as the clusters of `dataset_on` see it, e.g. `/lustre/data/c4/SHA256SUMS`: lines of
    sha256sum, paths relative to its folder. With it, the dataset is brought to a cluster that lacks it."""
    start_within: Duration | None = None
    """It must run on a cluster within this time, else the next one is tried. Default: `limits.place_timeout`."""
    job: Name | None = None
    """Fleet-unique name, given once. Default: made from the file's name."""
    name: Name | None = None
    """Name that the scheduler shows. Default: the file's name."""
    user: str | None = None
    """User to run as, where a batch scheduler runs it."""
    workdir: AbsolutePath | None = None
    """Working directory of a batch script. Default: the one where it is submitted."""
    checkpoint: AbsolutePath | None = None
    """Checkpoint root of the job, in each cluster at the same place below the mount of its storage."""
    checkpoint_signal: Literal["USR1", "USR2"] | None = None
    """Makes the job save. Default: it is never signalled."""
    total_steps: int | None = Field(default=None, ge=1)
    """Training steps of the whole job."""
    generation_check: bool = False
    """Its writer refuses to write when a higher generation exists."""
    transfer: bool = False
    """It may be moved to another cluster without asking."""
    log: AbsolutePath | None = None
    """Its output file, where it is not the scheduler's own."""

    @model_validator(mode="after")
    def _roots_have_a_common_one(self) -> Self:
        own = sorted(name for name, part in self.clusters.items() if part.checkpoint)
        if own and self.checkpoint is None:
            raise ValueError(
                f"the checkpoint of {own[0]} needs a `checkpoint` of the whole job, for all other clusters"
            )
        return self

    @model_validator(mode="after")
    def _dataset_is_somewhere(self) -> Self:
        if self.dataset is not None:
            if not self.dataset_on:
                raise ValueError("dataset needs dataset_on, the clusters that hold it")
            try:
                dataset_of(self.dataset)
            except InvalidInputError as error:
                raise ValueError(str(error)) from None
        return self


class Template(NamedTuple):
    """A template as it was read."""

    file: str
    """Its name for messages."""
    text: str


JOB_WORDS = Words("job file", "version and templates", "version: 1, templates: ...")


def parse_job(text: str, file: str) -> JobFile:
    """Raises InvalidInputError with one line for each thing that is wrong."""
    return parse_file(text, file, JobFile, _model_at, JOB_WORDS)


def _model_at(path: Path, data: object) -> type[Strict]:
    return ClusterPart if path and path[0] == "clusters" else JobFile


def wish_of(
    found: JobFile, templates: Mapping[str, Template], *, job: str, name: str, comment: str, workdir: str
) -> PlaceWish:
    """The job as its runbook places it. Raises InvalidInputError with one line for each thing that is wrong in the
    templates, or that fits no cluster."""
    problems: list[str] = []
    scopes: dict[str, str] = {}
    for kind, template in templates.items():
        check = _manifest_problems if kind == "kubernetes" else _script_problems
        wrong, scopes[kind] = check(template, found)
        problems += [told(wrong, template.file)] if wrong else []
    if sum(len(template.text) for template in templates.values()) > LONGEST:
        problems.append(f"the templates have more than {LONGEST} characters together; keep code and data out of them")
    if problems:
        raise InvalidInputError("\n".join(problems))
    return PlaceWish(
        request=Request(
            job=job,
            nodes=found.nodes,
            gpus_per_node=found.gpus_per_node,
            gpu_models=found.gpu_models,
            max_domains=found.max_domains,
        ),
        name=name,
        templates={kind: template.text for kind, template in templates.items()},
        scopes=scopes,
        clusters={n: ClusterWords(options=p.options, scope=p.account) for n, p in found.clusters.items()},
        roots={n: p.checkpoint for n, p in found.clusters.items() if p.checkpoint},
        dataset_on=found.dataset_on,
        dataset=found.dataset or "",
        comment=comment,
        workdir=found.workdir or workdir,
        user=found.user,
        start_within=found.start_within,
    )


# -- batch scripts

_DIRECTIVE = re.compile(r"#(?:SBATCH|SIM)\s")
_SAID = {"-N": "nodes", "--nodes": "nodes", "nodes": "nodes", "gpus": "gpus", "--gpus-per-node": "gpus"}
_NO_GPUS = frozenset({"nic", "mps", "shard"})
_SAID |= {"--gres": "gpus", "-A": "account", "--account": "account"}


def _script_problems(template: Template, job: JobFile) -> tuple[list[Problem], str]:
    """What is wrong, and the account that the script names."""
    if not template.text.startswith("#!"):
        return [Problem(1, "a batch script begins with #! and an interpreter")], ""
    problems: list[Problem] = []
    account = ""
    for number, line in enumerate(template.text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break  # as the schedulers do: directives stand before the first command
        if not _DIRECTIVE.match(line):
            continue
        try:
            said = shlex.split(line.partition(" ")[2], comments=True)
        except ValueError as error:
            problems.append(Problem(number, f"{line[:80]!r}: {error}"))
            continue
        for what, value in _options(said):
            if what == "account":
                account = value
            elif what == "nodes" and value != str(job.nodes):
                problems.append(Problem(number, f"{value} nodes; the job file says {job.nodes}"))
            elif what == "gpus" and (count := _gpus(value)) is not None and count != job.gpus_per_node:
                problems.append(Problem(number, f"{count} GPUs a node; the job file says {job.gpus_per_node}"))
    return problems, account


def _options(said: list[str]) -> list[tuple[str, str]]:
    """What the words of one directive say, as `--nodes=2`, `--nodes 2`, `-N2`, `-N 2` or `nodes=2`."""
    found = []
    for word, following in zip(said, [*said[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        short = word[:2] if word[:1] == "-" and word[:2] != "--" else ""
        if key in _SAID:
            found.append((_SAID[key], value if equals else following))
        elif short in _SAID:
            found.append((_SAID[short], word[2:]))
    return found


def _gpus(text: str) -> int | None:
    """GPUs in `8`, `h100:8`, `gpu:8`, `gpu:h100:8,nic:1`; None where it names no GPUs or no count."""
    counts = [part.rpartition(":")[2] for part in text.split(",") if part.partition(":")[0] not in _NO_GPUS]
    return sum(map(int, counts)) if counts and all(count.isdigit() for count in counts) else None


# -- manifests


def _manifest_problems(template: Template, job: JobFile) -> tuple[list[Problem], str]:
    """What is wrong, and the namespace that the manifest names."""
    read = read_yaml(template.text, template.file, DEPTH, "manifest")
    data: Any = read.data
    if read.problems:
        return list(read.problems), ""
    if not isinstance(data, dict):
        return [Problem(1, "a manifest is one object, such as a batch/v1 Job")], ""
    problems = [
        Problem(1, f"key '{key}' is missing")
        for key in ("apiVersion", "kind", "metadata", "spec")
        if not data.get(key)
    ]
    for key in ("metadata", "spec"):
        if data.get(key) and not isinstance(data[key], dict):
            problems.append(Problem(read.lines[(key,)], f"'{key}' must hold keys and values"))
    if problems:
        return problems, ""
    if (data["apiVersion"], data["kind"]) == ("batch/v1", "Job"):
        problems += _job_problems(data["spec"], read.lines, job)
    return problems, str(data["metadata"].get("namespace") or "default")


def _job_problems(spec: dict[str, Any], lines: Mapping[Path, int], job: JobFile) -> list[Problem]:
    """One pod a node. Other kinds have parts of several sizes: the apiserver's trial has to do there."""
    problems = [
        Problem(
            lines.get(("spec", key), 1), f"{key} is {spec.get(key, 'missing')}; the job file says {job.nodes} nodes"
        )
        for key in ("parallelism", "completions")
        if spec.get(key, 1) != job.nodes
    ]
    containers = _inside(spec, "template", "spec", "containers")
    where: Path = ("spec", "template", "spec", "containers")
    if not isinstance(containers, list) or not containers:
        return [*problems, Problem(_line(where, lines), "the pod template has no containers")]
    gpus = sum(_count(_inside(c, "resources", "limits", GPU)) for c in containers)
    if gpus != job.gpus_per_node:
        problems.append(
            Problem(_line(where, lines), f"its pod has {gpus} {GPU}; the job file says {job.gpus_per_node} a node")
        )
    return problems


def _inside(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _count(value: object) -> int:
    return int(str(value)) if str(value).isdigit() else 0


def _line(path: Path, lines: Mapping[Path, int]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)

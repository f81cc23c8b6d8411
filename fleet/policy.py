"""Everything a user may set (`fleet.yaml`), each with unit, default, effect and reason. Strict.

`fleet.policy_file.parse_policy` reads the file and turns what is wrong into file, line and what is allowed.
The same in prose: docs/configuration.md.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from fleet import policy_words as words
from fleet.errors import NotFoundError
from fleet.model import Name
from fleet.people import Signer
from fleet.policy_overrides import Override, different_rows
from fleet.policy_types import (
    AbsolutePath,
    Argv,
    CheckArgv,
    Duration,
    Percent,
    PowerArgv,
    Rate,
    Size,
    Strict,
    Tries,
)
from fleet.units import share


class StepMode(StrEnum):
    """What automation may do at a step (DESIGN.md law 10). Missing = propose."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    APPROVE = "approve"
    AUTO = "auto"


class Step(StrEnum):
    """The steps that have a mode: every runbook and every destructive act."""

    ISOLATE = "isolate"
    EVACUATE = "evacuate"
    FENCE = "fence"
    REBOOT = "reboot"
    CHECK = "check"
    RETURN = "return"
    RESTART_IN_PLACE = "restart_in_place"
    FAILOVER_IN_CLUSTER = "failover_in_cluster"
    FAILOVER_ACROSS_CLUSTERS = "failover_across_clusters"
    ADOPT = "adopt"


class Transport(StrEnum):
    """How a Slurm cluster is read; writes always go through the commands."""

    AUTO = "auto"
    CLI = "cli"
    PYSLURM = "pyslurm"


class Strangers(StrEnum):
    """What happens to other people's work on a node that must be repaired."""

    ASK = "ask"
    EVICT = "evict"


class PowerHook(Strict):
    """The programs that switch a node's power; run where the cluster's worker runs, `{node}` filled in."""

    off: PowerArgv
    """Argument list; exit 0 means accepted. Off is believed only when `status` prints it."""
    on: PowerArgv
    """Argument list; must be harmless when the node is on already, for it is repeated."""
    status: PowerArgv
    """Argument list; prints `on` or `off` as its first word. Anything else is unreadable and never taken for off."""


class SlurmCluster(Strict):
    """One Slurm cluster."""

    kind: Literal["slurm"]
    """`slurm`."""
    conf: AbsolutePath
    """Path of its slurm.conf. No default: the file names the controller, and a guess could name another cluster's."""
    bin_dir: AbsolutePath = "/usr/bin"
    """Folder of the Slurm programs, of the cluster's own release. Default: Debian's place."""
    transport: Transport = Transport.AUTO
    """Where reads go. `auto` takes pyslurm when it imports and equals the controller's release, else the commands:
    another release reads wrong fields without an error."""
    power: PowerHook | None = None
    """Power control. Default none: then a node that does not answer needs a named person's word that it is off."""
    check: CheckArgv | None = None
    """Quick check program, run on the isolated node after a repair; `{node}` and `{gpus}` (expected count) are
    filled in, exit 0 is a pass. Default none: only the scheduler's own count of GPUs is compared."""
    checkpoint_roots: tuple[AbsolutePath, ...] = ()
    """Folders under which jobs may name their checkpoint root. Default none: nothing is read or written there."""
    site: Name | None = None
    """Where its storage is, one of `sites`. Default none: then no job with a checkpoint moves to or from it."""
    twin: Name | None = None
    """Kubernetes cluster of this file on whose nodes, under the same names, these Slurm nodes run (Slinky). A node is
    then isolated, repaired and given back there, and counts there. Default none: the Slurm nodes are machines."""


class SimCluster(Strict):
    """One cluster of the embedded fleet."""

    kind: Literal["sim"]
    """`sim`."""
    path: Annotated[str, AfterValidator(words.file_path)]
    """SQLite file of the embedded fleet; relative to the folder of `fleet.yaml`. No default: two fleets may exist."""
    checkpoint_roots: tuple[AbsolutePath, ...] = ()
    """As for Slurm."""
    site: Name | None = None
    """As for Slurm."""


class DevicePlugin(Strict):
    """Where a cluster's GPU device plugin runs."""

    namespace: Annotated[str, AfterValidator(words.dns_label)]
    """Its namespace, such as `kube-system`."""
    selector: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    """Label selector of its pods, such as `name=nvidia-device-plugin-ds`."""


class KubernetesCluster(Strict):
    """One Kubernetes cluster."""

    kind: Literal["kubernetes"]
    """`kubernetes`."""
    kubeconfig: AbsolutePath | None = None
    """Path of the kubeconfig; give it, or `in_cluster`. No default: a guess could name another cluster's."""
    in_cluster: bool = False
    """`true`: the worker runs in a pod of this cluster and uses that pod's account. Default false."""
    context: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Context in the kubeconfig. Default none: its current one."""
    namespaces: tuple[Annotated[str, AfterValidator(words.dns_label)], ...] = ()
    """Namespaces whose jobs and pods are looked at. Default none named: all of them, which needs cluster-wide
    rights. A node's holders in other namespaces are not seen."""
    power: PowerHook | None = None
    """As for Slurm. Reboots go by it, too: off, read off, on."""
    check: AbsolutePath | None = None
    """Manifest of a Pod that is run on the isolated node after a repair; `{node}` and `{gpus}` (expected count) are
    filled in, it prints one JSON line `{"ok", "gpus", "detail"}`, exit 0 is a pass. Default none: only the
    allocatable GPUs are compared."""
    device_plugin: DevicePlugin | None = None
    """Where a check finds fewer allocatable GPUs than the node has, the plugin's pod there is started again first: it
    is known to keep a GPU unhealthy after its reset. Default none: never."""
    node_down_after: Duration = 50.0
    """When the cluster calls a silent node lost: --node-monitor-grace-period of its controller manager, which no API
    tells. Default 50s, as there."""
    strangers: Strangers = Strangers.ASK
    """Other people's work on a sick node: jobs that did not ask for supervision, and whatever else holds GPUs. `ask`
    waits for it until `drain_deadline`, then a person decides; `evict` asks it to leave at once by the Eviction API.
    Default ask: an eviction ends a training that nobody starts again."""
    checkpoint_roots: tuple[AbsolutePath, ...] = ()
    """As for Slurm."""
    site: Name | None = None
    """As for Slurm."""

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if (self.kubeconfig is None) != self.in_cluster:
            raise ValueError("give one of kubeconfig and in_cluster: true (the worker runs in a pod of this cluster)")
        if self.context is not None and self.kubeconfig is None:
            raise ValueError("context belongs to a kubeconfig; name the file too")
        return self


class Site(Strict):
    """The storage that the jobs of one or several clusters share. Its worker is `runbook worker --data SITE`."""

    mount: AbsolutePath
    """Folder as its jobs and its own data worker see it. A checkpoint root below it keeps its path below the other
    site's mount when a job moves."""
    remote: Annotated[str, AfterValidator(words.place)] | None = None
    """The same folder as the data workers of other sites reach it, `REMOTE:FOLDER` of rclone's configuration or
    `/FOLDER`. Default: `mount`, which is right where they mount it, too."""

    rate: Rate = 125e6
    """What a copy to it brings, for estimates only. Default 125MB/s, one line of 1 Gb/s: too low costs a detour, too
    high an hour of waiting; measure it."""
    replicate_to: tuple[Name, ...] = ()
    """Sites that get each `copies.replicate_every`-th checkpoint in advance. Default none."""

    @property
    def from_elsewhere(self) -> str:
        """The folder as other sites reach it."""
        return self.remote or self.mount


Cluster = Annotated[SlurmCluster | SimCluster | KubernetesCluster, Field(discriminator="kind")]


class Limits(Strict):
    """Blast radius, budgets and times."""

    nodes_out: int = Field(default=1, ge=0, le=10_000)
    """Nodes of one cluster out at a time. Default 1: the first months are for trust. 0 = never take one out.
    The smaller of this and `nodes_out_percent` holds."""
    nodes_out_percent: Percent = 10.0
    """Share of one cluster's nodes out at a time, rounded down but at least 1 unless it is 0%. Default 10%: an
    absolute limit that is right for 500 nodes is a third of a small cluster."""
    wave_from: int = Field(default=10, ge=2, le=10_000)
    """So many nodes of one cluster with a hardware fault at once are one wave: isolated together, repaired one after
    another. Default 10: below that each node's own runbook is as quick and its page says more; a run costs about 170
    events, and an embedded server on 2 cores starts some 15 a second."""
    nodes_isolated: int = Field(default=10, ge=0, le=10_000)
    """Nodes of one cluster that waves may isolate without asking, those already isolated counted. Default 10: more at
    once is as likely a wrong sensor as so many broken machines. The smaller of this and `nodes_isolated_percent`
    holds, but never less than may be out."""
    nodes_isolated_percent: Percent = 10.0
    """Share of one cluster's nodes, likewise. Default 10%, as for `nodes_out_percent`."""
    in_place_tries: Tries = 2
    """Restarts on the same nodes for one cause. Default 2: a passing fault passes once or twice; one bad node has
    been seen to eat all retries of a job in under a minute (toil #5452)."""
    in_place_delays: tuple[Duration, ...] = Field(default=(30.0, 120.0), max_length=10)
    """Wait before each restart in place, the last one repeats. Default 30s, 2m: what passes needs time to pass."""
    in_cluster_tries: Tries = 2
    """Failovers inside the cluster for one cause. Default 2; Slurm's own 5 let one 1,024-GPU job requeue 35 times and
    preempt 548 others."""
    across_tries: Tries = 1
    """Moves to another cluster for one cause. Default 1: each copies a checkpoint."""
    across_size: Size = 1e12
    """The most that a move may copy without asking, `1TB`. Default 1TB: a 70B model with its optimizer, some minutes
    at 2 GB/s; a larger copy is worth a look at the links it takes."""
    cluster_lost_after: Duration = 600.0
    """A cluster that does not answer for this long is lost for its jobs, which may move. Default 10m: a controller's
    restart or a partition of a minute must not start a second training."""
    early_failure: Duration = 600.0
    """A failure this soon after the start counts double. Default 10m: 73% of failing tasks die in their first ten
    minutes (Aegis), so an early death speaks for the job and against another try."""
    budget_resets_per_day: int = Field(default=4, ge=0, le=1000)
    """How often in one UTC day a newer complete checkpoint gives a job its tries back. Default 4: a job that saves
    every few minutes and dies as often must reach a person."""
    checkpoint_grace: Duration = 120.0
    """How long a stop waits for the checkpoint it asked for. Default 120s: the save of a large model, once."""
    step_timeout: Duration = 1800.0
    """From running to the first new training step. Default 30m: the mean load over NFS was 33 min on one fleet and
    seconds on others; longer fleets set it."""
    run_timeout: Duration = 86400.0
    """From queued to running. Default 24h: then a person is told that the job does not get its nodes."""
    place_timeout: Duration = 900.0
    """From the submit to running on the chosen cluster, where a job may go to several. Default 15m: then it is
    withdrawn, which costs nothing, and the next cluster is tried."""
    preflight_interval: Duration = 21600.0
    """How often it is proven that each cluster could receive each protected job. Default 6h: what breaks it (a right,
    a quota, a full store) is found within a shift, and a trial costs a cluster one look."""
    drain_deadline: Duration = 7200.0
    """How long a sick node waits for other people's jobs. Default 2h: then a person decides about them."""
    question_expiry: Duration = 14400.0
    """How long a question stays open before its safe default is taken. Default 4h: half a shift."""
    settle: Duration = 15.0
    """How long a node's daemon must answer steadily before it counts as proof, after the scheduler itself ended the
    attempt. Default 15s: a thawed slurmd killed its stale ranks 2.3 s after coming back (measured), times six."""
    lemon_quantile: Percent = 99.0
    """A node or a GPU stands out in a signal when so many of the others have no more of it. Default 99%: lemons were
    1.2% of a fleet's nodes and touched 13% of its jobs (arXiv 2410.21680); lower finds more, and more wrong ones."""
    stall_after: Duration = 1800.0
    """No new training step for this long is a stall. Default 30m: a collective alone may wait that long (Unicron)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.nodes_out_percent == 0 and self.nodes_out > 0:
            raise ValueError('nodes_out_percent "0%" lets no node out; to mean that, set nodes_out: 0 too')
        if self.preflight_interval < 60:
            raise ValueError(
                "preflight_interval must be at least 1m: each preflight asks every cluster once for each job"
            )
        return self


class Keep(Strict):
    """How long the history store keeps things. Nothing that an open runbook needs is forgotten, whatever its age."""

    evidence: Duration = 90 * 86400.0
    """What was seen. Default 90d: a quarter, for an RMA that the vendor asks about."""
    reports: Duration = 365 * 86400.0
    """Finished reports and verdicts. Default 365d, the longest: last year's figures are asked for."""
    specs: Duration = 365 * 86400.0
    """Scripts and specs of jobs. Default 365d, as for reports."""
    record: Duration = 90 * 86400.0
    """Strikes, runs and figures of nodes and GPUs. Default 90d: lemons are judged by 28d, baselines by a quarter."""

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        for name in type(self).model_fields:
            if getattr(self, name) < words.LEAST_KEPT:
                raise ValueError(f"{name} must be at least 28d: lemons are judged by four weeks")
        return self


class Copies(Strict):
    """Copies of checkpoints and datasets between clusters."""

    bandwidth: Rate | None = None
    """Most that one copy may use, as `500MB/s`. Default none."""
    headroom: Percent = 5.0
    """Share of a target's free space that a copy leaves free. Default 5%: the job saves there while we copy."""
    files_at_once: int = Field(default=8, ge=1, le=256)
    """Files in flight of one copy. Default 8; 992 files of 1.7 GB pulled at once hung a training (OPT-175B)."""
    replicate_every: int = Field(default=0, ge=0, le=1_000_000)
    """Each so many-th complete checkpoint of a job goes to the `replicate_to` of its site in advance, the newest one
    only. Default 0, none: it takes room and the line all the time. At 10 Gb/s a model of 405B takes 76 min."""
    replicate_interval: Duration = 600.0
    """How often it is looked whether one is due. Default 10m: saves are minutes to hours apart."""
    replicate_bandwidth: Rate | None = None
    """Most that one copy in advance may use. Default none, so `bandwidth` alone; it does not hold back a failover."""

    @model_validator(mode="after")
    def _looks_in_time(self) -> Self:
        if self.replicate_interval < 60:
            raise ValueError("replicate_interval must be at least 1m: each look lists the checkpoints of every job")
        return self


class Approver(Strict):
    """Someone whose signed answers count."""

    name: Annotated[str, AfterValidator(words.person)]
    """As it is signed and shown; letters, digits and `._@-`."""
    key: Annotated[str, AfterValidator(words.public_key)]
    """OpenSSH public key line (`ssh-ed25519 AAAA...`). Public: it may stand in the file."""


class Notify(Strict):
    """How a person is woken by a question; one of `command` and `url`."""

    command: Argv | None = None
    """Program that gets the question as JSON on standard input; exit 0 means delivered."""
    url: Annotated[str, AfterValidator(words.https_url)] | None = None
    """Gets the question as a POST of JSON, signed with HMAC-SHA256. `https`; plain `http` only to this machine."""
    secret_env: Annotated[str, AfterValidator(words.environment_name)] | None = None
    """Name of the environment variable that holds the signing secret: the secret itself never stands in the file."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give one of command and url")
        if self.url is not None and self.secret_env is None:
            raise ValueError("a url needs secret_env, the environment variable with the signing secret")
        if self.command is not None and self.secret_env is not None:
            raise ValueError("secret_env belongs to url; a command gets its secrets from its own environment")
        return self


def _different_people(approvers: tuple[Approver, ...]) -> tuple[Approver, ...]:
    """One person must not count as two, under one name or with one key."""
    names: set[str] = set()
    keys: dict[str, str] = {}
    for approver in approvers:
        if approver.name in names:
            raise ValueError(f"{approver.name} is given twice; keep one")
        names.add(approver.name)
        other = keys.setdefault(approver.key.split()[1], approver.name)
        if other != approver.name:
            raise ValueError(f"{other} and {approver.name} have the same key; each needs one of their own")
    return approvers


class Policy(Strict):
    """The whole of `fleet.yaml`."""

    version: Literal[1]
    """Version of the file's shape, 1. No default, so that an older release refuses a newer file."""
    clusters: Mapping[Name, Cluster] = Field(min_length=1)
    """Clusters by name. The name is part of ids and queues; it should be the scheduler's own ClusterName."""
    sites: Mapping[Name, Site] = {}
    """Storages by name. Default none: a job's checkpoint stays where its cluster is."""
    limits: Limits = Limits()
    """Blast radius, budgets and times."""
    modes: Mapping[Step, StepMode] = {}
    """What automation may do at each step. Default propose for each: nothing happens until a person says so."""
    approvers: Annotated[tuple[Approver, ...], AfterValidator(_different_people)] = ()
    """Whose answers count. Default nobody: then only the embedded server takes an (unsigned) answer, and says so."""
    copies: Copies = Copies()
    """Copies between clusters."""
    notify: Notify | None = None
    """How questions reach people. Default none: they wait in the Temporal UI and in `runbook list`."""
    store: Annotated[str, AfterValidator(words.store_url)] | None = None
    """History store, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`; a relative file (three slashes) lies in
    the folder of `fleet.yaml`. Default: a file in the state folder of whoever runs the worker."""
    keep: Keep = Keep()
    """How long the history store keeps things."""
    overrides: Annotated[tuple[Override, ...], AfterValidator(different_rows)] = ()
    """Catalogue rows changed for this fleet. Default none."""

    @model_validator(mode="after")
    def _twins_are_pairs(self) -> Self:
        taken: dict[str, str] = {}
        for name, cluster in self.clusters.items():
            twin = cluster.twin if isinstance(cluster, SlurmCluster) else None
            if twin is None:
                continue
            if not isinstance(self.clusters.get(twin), KubernetesCluster):
                raise ValueError(f"{name} has the twin {twin}, which is no Kubernetes cluster of this file")
            if taken.setdefault(twin, name) != name:
                raise ValueError(
                    f"{taken[twin]} and {name} have the same twin {twin}; a node can be one of them only"
                )
        return self

    @model_validator(mode="after")
    def _sites_are_known(self) -> Self:
        for name, cluster in self.clusters.items():
            if cluster.site is not None and cluster.site not in self.sites:
                known = ", ".join(sorted(self.sites)) or "none"
                raise ValueError(f"{name} is at the site {cluster.site}, which is not under sites (known: {known})")
        for name, site in self.sites.items():
            if wrong := [other for other in site.replicate_to if other not in self.sites or other == name]:
                raise ValueError(f"the site {name} replicates to {wrong[0]}, which is no other one of sites")
        return self

    def site_of(self, cluster: str) -> str | None:
        """Name of the cluster's site; None where the file names none."""
        return self.cluster(cluster).site

    def evicts_others(self, cluster: str) -> bool:
        """Whether a sick node of the cluster is cleared of other people's work, too."""
        return getattr(self.clusters.get(cluster), "strangers", None) is Strangers.EVICT

    def owner_of(self, cluster: str) -> str:
        """The cluster that a node of `cluster` is isolated and repaired in."""
        settings = self.clusters.get(cluster)
        return (settings.twin if isinstance(settings, SlurmCluster) else None) or cluster

    def slurm_on(self, cluster: str) -> str | None:
        """The Slurm cluster that runs on the nodes of this Kubernetes cluster; None for any other cluster."""
        return next((name for name in self.clusters if name != cluster and self.owner_of(name) == cluster), None)

    def mode(self, step: str) -> StepMode:
        """What automation may do at `step`; propose where the file says nothing, or does not know the step."""
        return {str(known): mode for known, mode in self.modes.items()}.get(str(step), StepMode.PROPOSE)

    def nodes_out(self, total_nodes: int) -> int:
        """Nodes of a cluster of `total_nodes` that may be out at a time: the smaller of both limits."""
        return min(self.limits.nodes_out, share(total_nodes, self.limits.nodes_out_percent))

    def nodes_isolated(self, total_nodes: int) -> int:
        """Nodes of a cluster of `total_nodes` that waves may isolate: the smaller of both limits, at least as many
        as may be out."""
        limit = min(self.limits.nodes_isolated, share(total_nodes, self.limits.nodes_isolated_percent))
        return max(limit, self.nodes_out(total_nodes))

    def cluster(self, name: str) -> SlurmCluster | SimCluster | KubernetesCluster:
        """Raises NotFoundError that lists the known clusters."""
        if name not in self.clusters:
            known = ", ".join(sorted(self.clusters))
            raise NotFoundError(f"no cluster {name!r} in the policy; known: {known}. Add it or correct the name")
        return self.clusters[name]

    @property
    def signers(self) -> tuple[Signer, ...]:
        """The approvers as questions carry them."""
        return tuple(Signer(name=a.name, key=a.key) for a in self.approvers)

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the canonical JSON; equal for files that mean the same."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

"""One job for any cluster: what its submit says once, and what that becomes for one cluster.

`PlaceJob` and `runbook submit JOB.yaml --dry-run` make their offers here, so that they choose alike.
"""

from collections.abc import Mapping

from pydantic import Field

from fleet.identity import parse_tokens
from fleet.model import Name, Room, Value
from fleet.orders import JobSpec
from fleet.placement import Offer, Request, Stock

BATCH = frozenset({"slurm", "sim"})
"""Kinds of cluster that take a batch script and options."""


class ClusterWords(Value):
    """What a submit says about one cluster only."""

    options: tuple[str, ...] = ()
    """Further options of its batch scheduler, each one argument."""
    scope: str = ""
    """Account that the job has there, whose quotas bind it."""


class PlaceWish(Value):
    """A job that may run on any cluster whose kind it has a template for."""

    request: Request
    name: str
    """The user's own name for it."""
    templates: Mapping[str, str]
    """Kind of cluster -> text of the batch script or manifest."""
    scopes: Mapping[str, str] = {}
    """Kind of cluster -> account or namespace that the template names."""
    clusters: Mapping[Name, ClusterWords] = {}
    """Only these clusters; empty: any."""
    roots: Mapping[Name, str] = {}
    """Cluster -> the checkpoint root that the job names there; on the others it names the common one."""
    dataset_on: tuple[Name, ...] | None = None
    """Clusters that hold the dataset; None: the job names none."""
    dataset: str = ""
    """Its manifest there; with it the dataset can be brought to other clusters. Empty: it stays where it is."""
    options: tuple[str, ...] = ()
    """Options of its batch scheduler in every cluster, each one argument."""
    comment: str = ""
    workdir: str = "/"
    user: str | None = None
    epoch: int = 0
    """Of the submit: one per submission of the job anywhere."""
    env: Mapping[str, str] = {}
    """Further environment of its ranks."""
    start_within: float | None = Field(default=None, gt=0)
    """Seconds within which it must run on a cluster, else it is withdrawn; None: the policy's."""

    @property
    def job(self) -> str:
        return self.request.job

    @property
    def checkpoint(self) -> str | None:
        """Its checkpoint root, where it names none for a cluster; None where it names none at all."""
        return parse_tokens(self.comment).checkpoint

    @property
    def common_root(self) -> str:
        """The root that it names for all clusters beside those of `roots`; empty where it names none of its own
        anywhere, so that a root keeps its place below the mounts."""
        return (self.checkpoint or "") if self.roots else ""

    @property
    def total_steps(self) -> int | None:
        """Training steps in all; None where it names none."""
        return parse_tokens(self.comment).total_steps

    def scope(self, cluster: str, kind: str) -> str:
        """Account or namespace that the job would have there; empty where nobody says."""
        return self.clusters.get(cluster, ClusterWords()).scope or self.scopes.get(kind, "")

    def spec(self, cluster: str, kind: str) -> JobSpec:
        """What is submitted there. Raises KeyError without a template for that kind."""
        batch, domains = kind in BATCH, self.request.max_domains
        options = [*self.options, f"--nodes={self.request.nodes}"]
        if kind == "slurm" and domains is not None:
            options.append(f"--switches={domains}")
        options += self.clusters.get(cluster, ClusterWords()).options
        return JobSpec(
            job=self.job,
            name=self.name,
            script=self.templates[kind],
            workdir=self.workdir,
            comment=self.comment,
            user=self.user if batch else None,
            options=tuple(options) if batch else (),
            epoch=self.epoch,
            env=self.env,
        )

    def stays_away(self, cluster: str, kind: str) -> tuple[str, ...]:
        """Why the job itself would not go there; empty where it would."""
        if self.clusters and cluster not in self.clusters:
            return (f"the job names other clusters: {', '.join(sorted(self.clusters))}",)
        return () if kind in self.templates else (f"the job has no template for {kind}",)

    def offer(
        self,
        cluster: str,
        kind: str,
        room: Room | None,
        *,
        unreadable: str = "",
        lacks: tuple[str, ...] = (),
        tried: str = "",
        checkpoint: Stock | None = None,
        dataset: Stock | None = None,
    ) -> Offer:
        """The cluster as a place for the job. One that is out anyway needs no room. Without a word of the sites the
        dataset is where the job says."""
        if dataset is None and self.dataset_on is not None:
            dataset = Stock(there=cluster in self.dataset_on)
        return Offer(
            cluster=cluster,
            room=room,
            unreadable=unreadable,
            scope=self.scope(cluster, kind),
            lacks=(*self.stays_away(cluster, kind), *lacks),
            excluded=tried,
            checkpoint=checkpoint,
            dataset=dataset,
        )

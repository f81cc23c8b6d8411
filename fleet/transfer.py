"""A move to another cluster, as far as it is arithmetic: could the job go there, and what is submitted.

`FailoverAcrossClusters` does it; the ladder and a dry run ask here.
"""

from collections.abc import Mapping

from fleet.errors import InvalidInputError
from fleet.identity import TOKEN_PREFIX, token_words
from fleet.model import Name, NativeJob, Value
from fleet.orders import CHECKPOINT_ENV
from fleet.placement import Request
from fleet.placing import BATCH, ClusterWords, PlaceWish
from fleet.policy import Policy
from fleet.sites import destination

CHECKPOINT = f"{TOKEN_PREFIX}checkpoint="


class Moves(Value):
    """What a decision must know of a job to say whether it could go to another cluster."""

    kinds: tuple[str, ...] = ()
    """Kinds of cluster that it has a template for; empty: its present cluster's."""
    clusters: tuple[str, ...] = ()
    """The only ones it may go to; empty: any."""
    checkpoint: str | None = None
    """Checkpoint root in its present cluster."""
    common: str = ""
    """The root that the job names for all clusters but those of `own`; empty: it keeps its place below the mount."""
    own: Mapping[Name, str] = {}
    """Cluster -> the root that the job names there."""


class Former(Value):
    """The object of a job in a cluster that the job has left."""

    cluster: str
    native_id: str
    fingerprint: str


def other_clusters(policy: Policy, cluster: str, moves: Moves) -> tuple[str, ...]:
    """Clusters that the job could be moved to: a template for their kind, and a way for its checkpoint."""
    kinds = moves.kinds or (policy.cluster(cluster).kind,)
    found = []
    for name, settings in policy.clusters.items():
        if name == cluster or settings.kind not in kinds or (moves.clusters and name not in moves.clusters):
            continue
        if _has_way(policy, cluster, name, moves):
            found.append(name)
    return tuple(found)


def _has_way(policy: Policy, source: str, target: str, moves: Moves) -> bool:
    """Without a root nothing of what was trained could be taken along, and nobody starts it anew by himself."""
    if moves.checkpoint is None:
        return False
    try:
        destination(policy, source, moves.checkpoint, target, common=moves.common, own=moves.own)
    except InvalidInputError:
        return False
    return True


def moves_of(wish: PlaceWish | None, native: NativeJob | None) -> Moves:
    """What is known of the job in its present cluster."""
    return Moves(
        kinds=tuple(wish.templates) if wish else (),
        clusters=tuple(wish.clusters) if wish else (),
        checkpoint=native.tokens.checkpoint if native else None,
        common=wish.common_root if wish else "",
        own=wish.roots if wish else {},
    )


def wish_of_native(job: str, native: NativeJob, kind: str, script: str, workdir: str = "/") -> PlaceWish:
    """A job that was submitted for one cluster only, as one for all clusters of that kind: its own script, and of its
    options what every cluster has. Partition and account are those of its script, or the target's defaults."""
    comment = token_words(native.tokens.model_copy(update={"supervise": True, "job": None}))
    options = (f"--gres=gpu:{native.gpus_per_node}",) if kind == "slurm" and native.gpus_per_node else ()
    return PlaceWish(
        request=Request(job=job, nodes=native.nodes_wanted, gpus_per_node=native.gpus_per_node),
        name=native.name.removesuffix(f".{job}"),
        templates={kind: script},
        options=options,
        comment=comment,
        workdir=workdir,
        user=native.user or None if kind in BATCH else None,
    )


def moved_wish(wish: PlaceWish, target: str, epoch: int, root: str) -> PlaceWish:
    """The job as it is submitted to `target` and nowhere else."""
    words = [word for word in wish.comment.split() if not word.startswith(CHECKPOINT)]
    return wish.model_copy(
        update={
            "clusters": {target: wish.clusters.get(target, ClusterWords())},
            "roots": {},
            "epoch": epoch,
            "env": {**wish.env, CHECKPOINT_ENV: root},
            "comment": " ".join([*words, f"{CHECKPOINT}{root}"]),
        }
    )

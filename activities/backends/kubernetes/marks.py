"""Our words on Kubernetes objects: labels, annotations, the taint, the finalizer, all under `gpu-runbooks.io/`.

On a job: its owner's opt-in and tokens (the same as in a Slurm comment, docs/jobs.md), and ours below.
"""

import json
from collections.abc import Mapping

from fleet.identity import EPOCH_TOKEN, TOKEN_PREFIX, op_of_reason, parse_tokens
from fleet.model import JobTokens, Value

# -- of a job
ADOPTED = f"{TOKEN_PREFIX}adopted"
"""Annotation: a runbook of ours supervises it, or did and has not given it back."""
HELD = f"{TOKEN_PREFIX}held"
"""Annotation: only we start its next attempt; a suspend with it is ours."""
RESTARTS = f"{TOKEN_PREFIX}restarts"
"""Annotation: number of the newest attempt that was ordered, 0 the first."""
RAN = f"{TOKEN_PREFIX}ran"
"""Annotation: number of the newest attempt that we saw run, for kinds whose object does not tell."""
GENERATION = f"{TOKEN_PREFIX}generation"
"""Annotation of the pod template, and so of each pod: number of its attempt. Pods read it by the downward API."""
CANCELLED = f"{TOKEN_PREFIX}cancelled"
"""Annotation: ended for good; it stays suspended."""
EXCLUDED = f"{TOKEN_PREFIX}excluded"
"""Annotation: nodes kept away from it, with a comma between two."""
REQUIRED = f"{TOKEN_PREFIX}required"
"""Annotation: the nodes that the next attempt is pinned to."""
OWN_AFFINITY = f"{TOKEN_PREFIX}own-node-affinity"
"""Annotation: the owner's own node affinity of each template (JSON list), before ours was written over it."""
PROGRESS = f"{TOKEN_PREFIX}progress"
"""Annotation of a pod: the newest line of its training's progress, written by its owner."""
KEY = f"{TOKEN_PREFIX}key"
"""Annotation: idempotency key of a submit of ours."""
EPOCH = EPOCH_TOKEN
"""Annotation: which submission of the job made the object (`JobSpec.epoch`); none on one of the first."""
QUEUE = f"{TOKEN_PREFIX}queue"
"""Annotation of a successor: the queue that it goes into once it may start, and not before."""
FIRST = f"{TOKEN_PREFIX}first"
"""Label: name of the first object of a job that needed a new object for its next attempt."""
FIRST_UID = f"{TOKEN_PREFIX}first-uid"
FIRST_CREATED = f"{TOKEN_PREFIX}first-created"
"""Annotations: uid and creation time of that first object, so that the job stays the same job."""

OUR_WORDS = frozenset(
    {ADOPTED, HELD, RESTARTS, RAN, CANCELLED, EXCLUDED, REQUIRED, OWN_AFFINITY, KEY, EPOCH, QUEUE}
    | {FIRST, FIRST_UID, FIRST_CREATED}
)
"""What a manifest that was read from a cluster has of ours: it is never a new object's."""

# -- of a pod
GATE = f"{TOKEN_PREFIX}placement"
"""Scheduling gate of pods whose template's node affinity cannot change: each waits until we have placed it."""
PROOF = f"{TOKEN_PREFIX}proof"
"""Finalizer: keeps a stopped pod's object, with its kubelet's word on its containers, until the next attempt."""

# -- of a node
ISOLATED = f"{TOKEN_PREFIX}isolated"
"""Taint (its value is the op) and annotation (the reason, for `kubectl describe node`)."""
CORDON_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""What Kubernetes' node lifecycle controller puts on each cordoned node and takes from each other one. Ours goes with
our cordon, in the same write: the controller then has nothing to write, which halves what a burst costs."""
STATE = f"{TOKEN_PREFIX}isolation"
"""Annotation (JSON): how the node was when it was isolated, and how far a reboot of ours is."""
OUT_OF_SERVICE = f"{TOKEN_PREFIX}out-of-service"
"""Annotation: op of ours that said by the taint below that the node is off; without it the taint is another's."""
OUT_TAINT = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
"""Kubernetes takes the pods of a node that is not Ready off its books, and their volumes off the node. To be set on a
node that is known to be off (kubernetes, Node Shutdowns, "Non-graceful node shutdown handling")."""


# -- of Slinky (SlinkyProject/slurm-operator, api/v1beta1/well_known.go)
CORDON_REASON = "nodeset.slinky.slurm.net/node-cordon-reason"
"""Annotation of a node: what its operator writes as Slurm's reason when it drains the twin of a cordoned node."""
SLURM_NODE = "nodeset.slinky.slurm.net/pod-hostname"
"""Label of a pod in which a slurmd runs: the name of its Slurm node."""


class Isolation(Value):
    """What we remember on a node while it is isolated."""

    op: str
    boot: str = ""
    """Boot identity then."""
    at: float = 0.0
    gpus: int = 0
    """Allocatable GPUs then, the most that were seen."""
    cordoned: bool = False
    """The cordon is ours; False where it was there before."""
    reboot_from: str = ""
    """Boot that a reboot of ours is to end; empty when none was asked."""
    reboot_at: float = 0.0
    power_was_off: bool = False
    """That reboot has got as far as a power that read off."""


def isolation_of(annotations: Mapping[str, str]) -> Isolation | None:
    """None where the node does not carry our mark; a mark that cannot be read still names its op."""
    op = op_of_reason(annotations.get(ISOLATED, ""))
    if op is None:
        return None
    try:
        kept = Isolation.model_validate_json(annotations.get(STATE, ""))
    except ValueError:
        return Isolation(op=op)
    return kept if kept.op == op else Isolation(op=op)


def tokens_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> JobTokens:
    """The owner's tokens: `gpu-runbooks.io/supervise` is a label (one selects by it), the rest are annotations."""
    words = {**annotations, **labels}
    own = {k: v for k, v in words.items() if k.startswith(TOKEN_PREFIX) and not any(c.isspace() for c in v)}
    return parse_tokens(" ".join(f"{key}={value}" if value else key for key, value in own.items()))


def annotations_of_comment(comment: str) -> dict[str, str]:
    """`gpu-runbooks.io/...` words of a submit's comment as annotations; other words have no place on a job."""
    found: dict[str, str] = {}
    for word in comment.split():
        if word.startswith(TOKEN_PREFIX):
            key, _, value = word.partition("=")
            found.setdefault(key, value or "true")
    return found


def names(text: str) -> tuple[str, ...]:
    """A list of names in an annotation."""
    return tuple(name for name in text.split(",") if name)


def affinities_kept(annotations: Mapping[str, str]) -> tuple[Mapping[str, object] | None, ...] | None:
    """The owner's node affinities that we wrote over; None when we never did."""
    if OWN_AFFINITY not in annotations:
        return None
    try:
        value = json.loads(annotations[OWN_AFFINITY])
    except ValueError:
        return ()
    return tuple(one or None for one in value) if isinstance(value, list) else ()

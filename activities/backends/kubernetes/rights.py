"""Which rights the adapter needs (deploy/kubernetes/rbac.yaml), and which of them its account lacks."""

import asyncio
from typing import NamedTuple

from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.kinds.all import ALWAYS, KINDS
from activities.backends.kubernetes.kueue import GROUP
from activities.backends.kubernetes.outcomes import Outcome, error_of_read
from activities.backends.kubernetes.reboot_node import GROUP as JANITOR
from activities.backends.kubernetes.reboot_node import PLURAL
from activities.backends.port import MissingRights

REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Right(NamedTuple):
    """One verb on one resource, and what does not work without it."""

    verb: str
    resource: str
    without: str
    group: str = ""
    optional: bool = False
    """Asked for only where the cluster has the resource."""

    def __str__(self) -> str:
        of = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{of}"


_READ = ("get", "list", "watch")
_SEE = "nothing of the cluster is seen"
_ANEW = "no submit, and no next attempt of a job that failed"
_ACT = "no job is adopted, stopped or started"
_QUEUE = "no job in a queue of Kueue is supervised"
_NODES = "no node is isolated or released"
_SEEN = tuple(dict.fromkeys((kind.group, kind.plural) for kind in KINDS if kind not in ALWAYS))
_OURS = tuple((kind.group, kind.plural) for kind in KINDS if kind not in ALWAYS and not kind.observed)
OBSERVING = (
    *(Right(verb, resource, _SEE) for resource in ("nodes", "pods") for verb in _READ),
    *(Right(verb, "jobs", _SEE, "batch") for verb in _READ),
    Right("list", "resourcequotas", "no quota is known, so no job is placed there"),
    Right("get", "pods/log", "no training step is seen, so no recovery can be called done"),
    *(Right(verb, plural, _SEE, group, True) for group, plural in _SEEN for verb in _READ),
    *(Right(verb, "workloads", _QUEUE, GROUP, True) for verb in _READ),
)
"""Those of the account `observe`."""
ACTING = (
    Right("create", "jobs", _ANEW, "batch"),
    Right("patch", "jobs", _ACT, "batch"),
    *(Right("create", plural, _ANEW, group, True) for group, plural in _OURS),
    *(Right("patch", plural, _ACT, group, True) for group, plural in _OURS),
    Right("patch", "workloads", _QUEUE, GROUP, True),
    Right("patch", "jobs/status", "no next attempt of a stopped job", "batch"),
    Right("patch", "pytorchjobs/status", "one that was held before it ran is counted as run", "kubeflow.org", True),
    Right("patch", "pods", "no kubelet's word is kept, so a stop is proven late or by power only"),
    Right("delete", "pods", "no next attempt while a lost node's pod object stays, and no check is tidied up"),
    Right("get", "pods/exec", "no checkpoint is asked for before a stop (1.34 and before)"),
    Right("create", "pods/exec", "no checkpoint is asked for before a stop (1.35 and later)"),
    Right("patch", "nodes", _NODES),
    *(
        Right(verb, PLURAL, "no node is rebooted where the cluster has no power hook", JANITOR, True)
        for verb in ("create", "get")
    ),
    Right("create", "pods/eviction", "nothing but supervised jobs leaves a sick node"),
    Right("list", "volumeattachments", "no volume is let go by a node that is off", "storage.k8s.io"),
    Right("create", "pods", "no check pod runs, so no repaired node comes back"),
    Right("create", "events", "nobody reads in `kubectl describe node` what was done"),
)
"""What the accounts `act` and `repair` have besides."""
RIGHTS = (*OBSERVING, *ACTING)
_CHANGES = frozenset({"create", "patch", "delete"})
"""Verbs that change something; whoever has none of them may only look."""


CLUSTER_WIDE = frozenset({"nodes", "volumeattachments"})
"""Resources without a namespace."""


def _spaces(right: Right, namespaces: tuple[str, ...]) -> tuple[str, ...]:
    return ("",) if right.resource in CLUSTER_WIDE else namespaces or ("",)


async def missing_rights(
    api: KubeApi, namespaces: tuple[str, ...], served: frozenset[tuple[str, str]]
) -> MissingRights:
    """Asks the apiserver itself, for every namespace that is looked at. Raises TemporaryError when it cannot.
    `served`: (API group, resource) of what the cluster has beyond its own."""
    wanted = [
        right for right in RIGHTS if not right.optional or (right.group, right.resource.partition("/")[0]) in served
    ]
    asked = [(right, space) for right in wanted for space in _spaces(right, namespaces)]
    allowed = await asyncio.gather(*(_may(api, right, space) for right, space in asked))
    missing = tuple(dict.fromkeys(right for (right, _), may in zip(asked, allowed, strict=True) if not may))
    changes = any(may and right.verb in _CHANGES for (right, _), may in zip(asked, allowed, strict=True))
    return MissingRights(
        rights={str(right): right.without for right in missing},
        observes=not changes and not set(missing) & set(OBSERVING),
    )


async def _may(api: KubeApi, right: Right, namespace: str) -> bool:
    resource, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": part}
    if namespace:
        attributes["namespace"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.write("POST", REVIEW, body)
    if answer.outcome is not Outcome.DONE:
        raise error_of_read(f"right to {right}", answer.outcome, answer.text, answer.retry_after)
    return bool(answer.body.get("status", {}).get("allowed"))

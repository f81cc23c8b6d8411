"""JobSet (jobset.x-k8s.io/v1alpha2). What its controller lets us change, and what it does by itself, was measured on
v0.11 (docs/kubernetes.md)."""

import copy
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.base import (
    LONGEST_NAME,
    JobKind,
    KindState,
    Release,
    managed_by_others,
    note_restarts,
    set_gate,
    set_number,
    true_conditions,
)
from activities.backends.kubernetes.kinds.batch_job import fill_in_spec, pods_at_a_time, spec_refusal
from activities.backends.kubernetes.records import PodRecord
from fleet.errors import InvalidInputError
from fleet.model import Phase

NAME = "jobset.sigs.k8s.io/jobset-name"
UID = "jobset.sigs.k8s.io/jobset-uid"
CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_LONGEST_POD = 63
"""Characters of a pod's name, `JOBSET-PART-REPLICA-INDEX-abcde`, that the JobSet webhook allows (RFC 1035 label)."""


class JobSet(JobKind):
    """`JobKind` of JobSet."""

    word: ClassVar[str] = "jobset"
    api_version: ClassVar[str] = "jobset.x-k8s.io/v1alpha2"
    api_kind: ClassVar[str] = "JobSet"
    plural: ClassVar[str] = "jobsets"
    label: ClassVar[str] = NAME
    affinity_mutable: ClassVar[bool] = False
    has_jobs: ClassVar[bool] = True
    ends_with_a_pod: ClassVar[bool] = True

    def state(self, raw: Raw) -> KindState:
        """Nothing in it says whether it ever ran, or that the end of one of its Jobs is decided."""
        true = true_conditions(raw)
        ended, why = None, ""
        if "Completed" in true:
            ended = Phase.SUCCEEDED
        elif "Failed" in true:
            why = " ".join(str(true["Failed"].get(word) or "") for word in ("reason", "message")).strip()
            ended = Phase.FAILED
        return KindState(
            suspended=bool(raw.get("spec", {}).get("suspend")),
            ended=ended,
            reason=why,
            wanted=sum(part.get("replicas", 1) * pods_at_a_time(part["template"]["spec"]) for part in _parts(raw)),
        )

    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        return tuple(part["template"]["spec"]["template"] for part in _parts(raw)) or ({},)

    def object_of(self, pod: PodRecord) -> str:
        return pod.labels.get(NAME, "")

    def is_of(self, pod: PodRecord, raw: Raw) -> bool:
        return pod.labels.get(UID) == str(raw["metadata"]["uid"])

    def longest_name(self, raw: Raw) -> int:
        numbers = (
            (p["name"], p.get("replicas", 1), p["template"]["spec"].get("completions", 1)) for p in _parts(raw)
        )
        tails = (f"-{name}-{replicas - 1}-{pods - 1}-abcde" for name, replicas, pods in numbers)
        return min(LONGEST_NAME, _LONGEST_POD - max(map(len, tails), default=0))

    def refusal(self, raw: Raw) -> str | None:
        spec = raw.get("spec", {})
        why = managed_by_others(raw, CONTROLLER) or _restarts_itself(spec.get("failurePolicy") or {})
        if why is not None:
            return why
        if spec.get("volumeClaimPolicies"):
            return (
                "take spec.volumeClaimPolicies away: a failed JobSet goes on as a new object, which would get new, "
                "empty volumes; name a claim of your own in its pods"
            )
        for place, part in enumerate(_parts(raw)):
            at = f"spec.replicatedJobs[{place}]"
            if part.get("dependsOn"):
                return f"take {at}.dependsOn away: what it waits for has ended, and is not run again with the rest"
            why = spec_refusal(part["template"]["spec"], f"{at}.template.spec")
            if why is not None:
                return why
        return None

    def hosts(self, raw: Raw, names: str) -> str:
        parts = "|".join(re.escape(part["name"]) for part in _parts(raw))
        return rf"{names}-(?:{parts})-\d+-\d+" if parts else ""

    def fill_in(self, raw: Raw) -> Raw:
        made = copy.deepcopy(raw)
        if not _parts(made):
            raise InvalidInputError("the manifest needs spec.replicatedJobs")
        for part in _parts(made):
            fill_in_spec(part["template"]["spec"])
            note_restarts(part["template"]["spec"]["template"])
        return made

    def release(self, raw: Raw, order: Release) -> Raw:
        """Its controller takes annotations and gates of the templates over to its Jobs when it resumes."""
        parts = copy.deepcopy(_parts(raw))
        for part in parts:
            template = part["template"]["spec"]["template"]
            set_number(template, order.generation)
            set_gate(template, order.gated)
        spec: Raw = {"replicatedJobs": parts}
        return {
            "metadata": {"annotations": dict(order.annotations)},
            "spec": spec if order.suspended else {"suspend": False, **spec},
        }

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        """Its pods' host names follow its own name, so that they never meet those of the old one."""
        spec = copy.deepcopy(raw["spec"])
        (spec.get("network") or {}).pop("subdomain", None)
        for part in spec["replicatedJobs"]:
            template = part["template"]["spec"]["template"]
            set_number(template, order.generation)
            template["metadata"].pop("creationTimestamp", None)
            set_gate(template, False)
        return self.made_of(raw, name, order, {**spec, "suspend": True})


def _parts(raw: Raw) -> list[Raw]:
    """Its replicatedJobs."""
    found: list[Raw] = raw.get("spec", {}).get("replicatedJobs") or []
    return found


def _restarts_itself(policy: Mapping[str, Any]) -> str | None:
    """The field of a failure policy with which its controller runs the set again under the same number."""
    if policy.get("maxRestarts"):
        return (
            f"set spec.failurePolicy.maxRestarts: 0 (is {policy['maxRestarts']}): its controller would run it again "
            "by itself, and with more than one Job two attempts at a time"
        )
    for place, rule in enumerate(policy.get("rules") or []):
        if rule.get("action") != "FailJobSet":
            return (
                f"set spec.failurePolicy.rules[{place}].action: FailJobSet (is {rule.get('action')}): its controller "
                "would run it again by itself"
            )
    return None

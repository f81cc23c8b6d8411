"""What a kind of job must be able to say and do. Pure: objects in, facts and patches out; no calls."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from activities.backends.kubernetes.api import Raw
from activities.backends.kubernetes.kinds.addresses import told_hosts
from activities.backends.kubernetes.marks import FIRST, GATE, GENERATION
from activities.backends.kubernetes.records import PodRecord, conditions_of
from fleet.model import Phase, Value
from fleet.orders import EPOCH_ENV, RESTART_ENV

CHILD = "child"
"""Key under which an object has its child (`JobKind.child`) where that was read, too."""
LONGEST_NAME = 56
"""Characters of an Indexed Job's name: its pods' host names, `NAME-INDEX`, must not pass 63."""


class KindState(Value):
    """A native object's own view of itself. None of it proves that a rank is gone."""

    suspended: bool = False
    has_run: bool = False
    """It was released at least once since its template could last be changed; False where the kind cannot tell."""
    ending: bool = False
    """Its end is decided; its pods may still live."""
    ended: Phase | None = None
    reason: str = ""
    wanted: int = 1
    """Pods that run at a time."""
    succeeded: int = 0
    """Ranks that are done, also those whose pods went with their node."""
    started_at: float | None = None


class Release(Value):
    """What the next attempt of a suspended object is to be."""

    generation: int
    annotations: Mapping[str, str | None]
    """Of the object itself; None takes one away."""
    affinities: tuple[Mapping[str, object] | None, ...] = ()
    """Node affinity of each pod template, in their order; None for none."""
    gated: bool = False
    """The templates get the scheduling gate `marks.GATE` instead, and each pod is placed when it is there."""
    suspended: bool = False
    """Who starts it is another (Kueue): its own `suspend` stays as it is."""


class JobKind(ABC):
    """One kind. An object of it is called *job object* here; its pods may belong to objects between."""

    word: ClassVar[str]
    """First part of a native id."""
    api_version: ClassVar[str]
    """Such as `batch/v1`."""
    api_kind: ClassVar[str]
    plural: ClassVar[str]
    """Its resource, in a path and in a role."""
    label: ClassVar[str]
    """Of its pods; its value is the object's name, save where the kind says otherwise."""
    child: ClassVar["JobKind | None"] = None
    """Kind of the object of the same name that it makes, where only that one says how its pods are run."""
    observed: ClassVar[bool] = False
    """It is shown and never adopted."""
    quiet: ClassVar[float | None] = None
    """Seconds that no pod of older attempts was there before the next one may be released, where its controller does
    not wait for them by itself; None where it does."""
    affinity_mutable: ClassVar[bool] = True
    """Node affinity of a stopped object's template may change; where not, its pods are placed by `marks.GATE`."""
    has_jobs: ClassVar[bool] = False
    """Its pods belong to Jobs of its own, which carry the labels of `pods_of`, too."""
    ends_with_a_pod: ClassVar[bool] = False
    """One failed pod ends the whole for good, and the object says so only after the last pod."""

    @property
    def group(self) -> str:
        """API group."""
        return self.api_version.partition("/")[0]

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of the API: of all, of one namespace's, or of one object."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.api_version}{where}/{self.plural}" + (f"/{name}" if name else "")

    @abstractmethod
    def state(self, raw: Raw) -> KindState:
        """What the object says."""

    @abstractmethod
    def templates(self, raw: Raw) -> tuple[Raw, ...]:
        """Its pod templates, of each role; at least one, an empty one where the object has none."""

    @abstractmethod
    def object_of(self, pod: PodRecord) -> str:
        """Name of the object of this kind that the pod belongs to; empty when it belongs to none."""

    def is_of(self, pod: PodRecord, raw: Raw) -> bool:
        """Whether a pod with that name belongs to this very object, and not to an older one of the same name."""
        return pod.owner_uid == str(raw["metadata"]["uid"])

    def pods_of(self, names: Sequence[str]) -> str:
        """Label selector of the pods of these objects; it may find more than these."""
        return f"{self.label} in ({','.join(names)})"

    def longest_name(self, raw: Raw) -> int:
        """Characters that the name of such an object may have, for names are made of it."""
        del raw
        return LONGEST_NAME

    @abstractmethod
    def refusal(self, raw: Raw) -> str | None:
        """The exact field to change where its own controller could start a second copy, else None."""

    def hosts(self, raw: Raw, names: str) -> str:
        """Regular expression of the host names of its pods, which are made of the object's name; `names` is one of
        that name. Empty where nobody can know them before the pods are there."""
        del raw, names
        return ""

    def advice(self, raw: Raw) -> tuple[str, ...]:
        """What in the object will trouble an attempt that goes on as a new object, one sentence each."""
        labels = raw["metadata"].get("labels") or {}
        names = sorted({raw["metadata"]["name"], labels.get(FIRST, raw["metadata"]["name"])})
        hosts = self.hosts(raw, f"(?:{'|'.join(map(re.escape, names))})")
        return told_hosts(self.templates(raw), hosts) if hosts else ()

    @abstractmethod
    def fill_in(self, raw: Raw) -> Raw:
        """A manifest for a submit, with what we need where its owner left it open. Raises InvalidInputError."""

    def add_variables(self, made: Raw, env: Mapping[str, str]) -> None:
        """Gives every container of a filled-in manifest the variables of its submission."""
        for template in self.templates(made):
            spec = template.get("spec", {})
            for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
                set_variables(container.setdefault("env", []), env)

    def suspend(self, annotations: Mapping[str, str | None]) -> Raw:
        """Patch that stops it with its pods' grace and keeps the object."""
        return {"metadata": {"annotations": dict(annotations)}, "spec": {"suspend": True}}

    def reopen(self, raw: Raw) -> Raw | None:
        """Patch of the status after which the template may change and it counts as not started; None when it is so
        already, or the kind needs none."""
        del raw
        return None

    def prepare(self, raw: Raw, order: Release) -> Raw | None:
        """Patch that must land before the release, of a suspended object; None when it has, or none is needed."""
        del raw, order
        return None

    @abstractmethod
    def release(self, raw: Raw, order: Release) -> Raw:
        """Patch that starts the next attempt."""

    @abstractmethod
    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        """A new, suspended object for the next attempt of one that has ended for good."""

    def made_of(self, raw: Raw, name: str, order: Release, spec: Raw, *, drop: frozenset[str] = frozenset()) -> Raw:
        """The successor with that spec. `drop`: labels of the old object that are not taken over."""
        return {
            "apiVersion": self.api_version,
            "kind": self.api_kind,
            "metadata": successor_metadata(raw, name, order, drop),
            "spec": spec,
        }


# -- what the kinds share


def controller_of(raw: Raw) -> Raw | None:
    """The owner reference of what controls the object."""
    return next((o for o in raw["metadata"].get("ownerReferences") or [] if o.get("controller")), None)


def managed_by_others(raw: Raw, own: str) -> str | None:
    """Why another program's object is not ours to act on. `own`: the name of the kind's own controller."""
    owner = controller_of(raw)
    if owner is not None:
        return f"it belongs to the {owner['kind']} {owner['name']}, which acts on it and would undo what we do"
    manager = raw.get("spec", {}).get("managedBy", own)
    if manager != own:
        return (
            f"{manager} manages it (spec.managedBy): its pods run in another cluster, where their end must be proven "
            "before a stop here deletes them; hands off"
        )
    return None


def gates_of(template: Raw) -> list[str]:
    """Names of the scheduling gates of a pod template, or of a pod."""
    return [gate["name"] for gate in template.get("spec", {}).get("schedulingGates") or []]


def other_gates(spec: Raw) -> list[Raw]:
    """The scheduling gates of a pod's spec without ours."""
    return [gate for gate in spec.get("schedulingGates") or [] if gate["name"] != GATE]


def set_gate(template: Raw, wanted: bool) -> None:
    """Gives a pod template our scheduling gate, or takes it away; others' stay."""
    gates = [*other_gates(template["spec"]), *([{"name": GATE}] if wanted else [])]
    template["spec"] = {k: v for k, v in template["spec"].items() if k != "schedulingGates"}
    template["spec"] |= {"schedulingGates": gates} if gates else {}


def true_conditions(raw: Raw) -> Mapping[str, Raw]:
    """Conditions that are True, by type."""
    return {kind: c for kind, c in conditions_of(raw).items() if c.get("status") == "True"}


def set_number(template: Raw, generation: int) -> None:
    """Writes the number of its attempt into a pod template."""
    kept = template.get("metadata") or {}
    notes = {**(kept.get("annotations") or {}), GENERATION: str(generation)}
    template["metadata"] = {**kept, "annotations": notes}


def add_restart_variable(env: list[Raw]) -> None:
    """Gives a container's environment the variable that reads the number; one that stands there stays."""
    if RESTART_ENV not in {one.get("name") for one in env}:
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{GENERATION}']"}}
        env.append({"name": RESTART_ENV, "valueFrom": source})


def set_variables(env: list[Raw], values: Mapping[str, str]) -> None:
    """Gives a container's environment these, in the place of its owner's of such a name. The epoch of a first
    submission is what a missing one means: it stands only in the place of another."""
    own = {one.get("name"): number for number, one in enumerate(env)}
    for name, value in values.items():
        made = {"name": name, "value": value.replace("$", "$$")}  # else `$(NAME)` would be filled in
        if name in own:
            env[own[name]] = made
        elif (name, value) != (EPOCH_ENV, "0"):
            env.append(made)


def note_restarts(template: Raw) -> None:
    """Gives a template of a first attempt its number, and its containers the variable that reads it."""
    for container in template.setdefault("spec", {}).get("containers", []):
        add_restart_variable(container.setdefault("env", []))
    set_number(template, 0)


def template_patch(template: Raw, order: Release, number: int) -> Raw:
    """Merge patch of the pod template with that number in `Kind.templates`: its attempt and its node affinity."""
    patch: Raw = {"metadata": {"annotations": {GENERATION: str(order.generation)}}}
    has = template.get("spec", {}).get("affinity") or {}
    ours = order.affinities[number] if number < len(order.affinities) else None
    if ours or has.get("nodeAffinity"):
        left = {k: v for k, v in {**has, "nodeAffinity": ours}.items() if v}
        patch["spec"] = {"affinity": replacing(has, left) if left else None}
    return patch


def merged(old: Raw, patch: Raw) -> Raw:
    """What a merge patch makes of an object (RFC 7386), for parts of lists, which such a patch replaces whole."""
    made = {k: v for k, v in old.items() if patch.get(k, v) is not None}
    for key, value in patch.items():
        if isinstance(value, Mapping):
            before = made.get(key)
            made[key] = merged(before if isinstance(before, dict) else {}, dict(value))
        elif value is not None:
            made[key] = value
    return made


def replacing(old: Mapping[str, object], new: Mapping[str, object]) -> Raw:
    """A merge patch that makes `old` into `new`: what is gone must be named with null."""
    patch: Raw = dict.fromkeys(old.keys() - new.keys(), None)
    for key, value in new.items():
        before = old.get(key)
        patch[key] = replacing(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return patch


def successor_metadata(raw: Raw, name: str, order: Release, drop: frozenset[str]) -> Raw:
    """Metadata of a successor: the old one's own labels and annotations, our words, and the name of the first."""
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    notes = {**(meta.get("annotations") or {}), **order.annotations}
    return {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {
            **{k: v for k, v in labels.items() if k not in drop},
            FIRST: labels.get(FIRST, meta["name"]),
        },
        "annotations": {
            k: v for k, v in notes.items() if v is not None and not k.startswith("kubectl.kubernetes.io/")
        },
    }

"""What a kind of job must be able to say and do. Pure: objects in, facts and patches out; no calls."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from activities.backends.kubernetes.api import Raw
from fleet.model import Phase, Value


class KindState(Value):
    """A native object's own view of itself. None of it proves that a rank is gone."""

    suspended: bool = False
    has_run: bool = False
    """It was released at least once since its template could last be changed."""
    ending: bool = False
    """Its end is decided; its pods may still live."""
    ended: Phase | None = None
    reason: str = ""
    wanted: int = 1
    """Pods that run at a time."""
    started_at: float | None = None


class Release(Value):
    """What the next attempt of a suspended object is to be."""

    generation: int
    annotations: Mapping[str, str | None]
    """Of the object itself; None takes one away."""
    node_affinity: Mapping[str, object] | None
    """Of the pod template; None for none."""


class JobKind(Protocol):
    """One kind. `word` is the first part of a native id."""

    word: str
    owner: str
    """`kind` in the owner reference of its pods."""

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of the API: of all, of one namespace's, or of one object."""

    def state(self, raw: Raw) -> KindState:
        """What the object says."""

    def template(self, raw: Raw) -> Raw:
        """Its pod template."""

    def pods_of(self, names: Sequence[str]) -> str:
        """Label selector of the pods of these objects."""

    def refusal(self, raw: Raw) -> str | None:
        """The exact field to change where its own controller could start a second copy, else None."""

    def fill_in(self, raw: Raw) -> Raw:
        """A manifest for a submit, with what we need where its owner left it open."""

    def suspend(self, annotations: Mapping[str, str | None]) -> Raw:
        """Patch that stops it with its pods' grace and keeps the object."""

    def reopen(self, raw: Raw) -> Raw | None:
        """Patch of the status after which the template may change; None when it may already."""

    def release(self, raw: Raw, order: Release) -> Raw:
        """Patch that starts the next attempt."""

    def successor(self, raw: Raw, name: str, order: Release) -> Raw:
        """A new, suspended object for the next attempt of one that has ended for good."""

"""Names, inputs, outputs and time limits of the activities that copy a checkpoint or a dataset between two roots.

As in `activities/api.py`: no SDK, no effect. They run on `data.<site>`. All take the same order and are keyed by its
operation id, so each may be asked again at any time: `SURVEY_COPY` (does it fit, how long), `COPY_FILES` (into
staging, verified), `PROVE_COPY` (read back at the target), `PUBLISH_COPY` (final name, tracker, receipt), `DROP_COPY`
(what is left of it goes).
"""

from collections.abc import Mapping
from datetime import timedelta

from pydantic import ConfigDict, field_validator

from activities.api import Activity, Nothing
from fleet.copying.manifest import Parts
from fleet.copying.places import parse_place
from fleet.errors import InvalidInputError
from fleet.model import OpId, Value


class CopyOrder(Value):
    """What is copied from where to where."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    cluster: str
    """The target's cluster: its freeze stops each step."""
    op: OpId
    """See `fleet.copying.places.copy_op`."""
    source: str
    """Checkpoint root, or the folder that holds a dataset: `/FOLDER` or `REMOTE:FOLDER`. No credentials."""
    target: str
    """Root at the target, likewise."""
    parts: Parts
    owner: str = ""
    """User of the target's machine to whom the files are given, or `UID[:GID]`; empty: they stay the worker's. On a
    remote the account of its configuration owns them."""
    origin: str = ""
    """The source in a person's words, for the receipt; empty: `source`."""
    bandwidth: float | None = None
    """Bytes a second at most, where that is less than the policy's; None: the policy's alone."""

    @field_validator("source", "target")
    @classmethod
    def _place(cls, text: str) -> str:
        try:
            return str(parse_place(text))
        except InvalidInputError as error:
            raise ValueError(str(error)) from None


class Survey(Value):
    """What a copy would take, before anything is written for good."""

    files: int
    size: int
    """Bytes in all."""
    to_copy: int
    """Bytes that are not at the target yet."""
    published: bool = False
    """It is there already, with our receipt."""
    fits: bool | None
    """None: the target does not tell its room."""
    room: str
    """The arithmetic of it, for people."""
    seconds: float | None = None
    """At the policy's bandwidth; None without one."""
    problems: tuple[str, ...] = ()
    """Why it cannot be done as it stands, each with what to do; empty when nothing is known against it."""


class CopyProgress(Value):
    """The heartbeat of a copy."""

    step: str
    """read source, check staging, copy data, copy markers, prove, publish."""
    done: int = 0
    """Bytes of this step."""
    total: int = 0
    rate: float = 0.0
    """Bytes a second over the last seconds."""


class Copied(Value):
    """Everything lies in staging and was compared by hash."""

    files: int
    size: int
    copied: int
    """Bytes that this try moved."""
    kept: int
    """Bytes that earlier tries had moved and that were found right."""
    digest: str
    """Of the manifest."""
    proofs: Mapping[str, int] = {}
    """Files by what proves each: `store` (a hash that the store keeps) or `read` (read back by us)."""
    pinned: str = ""
    """Why the source is not protected by hard links; empty when it is."""
    seconds: float = 0.0


class Proof(Value):
    """What reading everything back at the target said."""

    ok: bool
    text: str = ""
    """What differs; those files were taken out of staging, so that the next copy brings them again."""
    files: int = 0
    size: int = 0
    seconds: float = 0.0


class Published(Value):
    """It is visible under its final name, its tracker names it, the receipt is written."""

    receipt: str
    """Path of the receipt in the target root."""
    digest: str = ""
    seconds: float = 0.0


SURVEY_COPY = Activity("survey_copy", CopyOrder, Survey, timedelta(minutes=15), timedelta(hours=1))
COPY_FILES = Activity("copy_files", CopyOrder, Copied, timedelta(days=2), timedelta(days=3), mutates=True)
PROVE_COPY = Activity("prove_copy", CopyOrder, Proof, timedelta(days=1), timedelta(days=2), mutates=True)
PUBLISH_COPY = Activity("publish_copy", CopyOrder, Published, timedelta(days=1), timedelta(days=2), mutates=True)
DROP_COPY = Activity("drop_copy", CopyOrder, Nothing, timedelta(minutes=30), timedelta(hours=2))

"""Where a copy comes from and goes to, and the names that we use there.

A place is written as rclone writes it: `/data/ckpt` or `REMOTE:bucket/folder`. The remote's settings and credentials
stay in rclone's own configuration or environment; a place that could carry one is refused.
"""

import re

from fleet.checkpoints import names
from fleet.checkpoints.model import FOLDER
from fleet.errors import InvalidInputError
from fleet.identity import op_id
from fleet.model import Value

_REMOTE = re.compile(r"(?P<remote>[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,99}):(?P<path>.*)", re.DOTALL)
_DRIVE = 1
"""Letters of a Windows drive, which looks like a remote."""


class Place(Value):
    """A folder of this machine (`remote` empty) or of a remote in rclone's configuration."""

    remote: str = ""
    path: str

    def __str__(self) -> str:
        return f"{self.remote}:{self.path}" if self.remote else self.path

    def at(self, path: str) -> str:
        """A path in it, as rclone takes it; empty for itself."""
        whole = f"{self.path}/{path}" if path and self.path else path or self.path
        return f"{self.remote}:{whole}" if self.remote else whole


def parse_place(text: str) -> Place:
    """Raises InvalidInputError that says how to write one."""
    how = "write /FOLDER or REMOTE:FOLDER, REMOTE being a section of rclone's configuration"
    if not text.isprintable() or any(part in {".", ".."} for part in re.split(r"[/:]", text)):
        raise InvalidInputError(f"a place holds `.`, `..` or a character that cannot be shown; {how}")
    if text.startswith("/"):
        if not text.strip("/"):
            raise InvalidInputError(f"the whole file system is no place of a copy; {how}")
        return Place(path="/" + text.strip("/"))
    found = _REMOTE.fullmatch(text)
    if found is None or len(found["remote"]) <= _DRIVE or found["path"].startswith("//"):  # a drive, an URL
        raise InvalidInputError(
            f"this is no place of a copy (settings of a remote never stand in it: it goes into histories); {how}"
        )
    path = found["path"]
    if not path.strip("/"):
        raise InvalidInputError(f"the whole of {found['remote']}: is no place of a copy; {how}")
    return Place(remote=found["remote"], path=path.rstrip("/"))


def copy_op(source: str, name: str, target: str) -> str:
    """Operation id of the copy of one entry between two roots. The same for a replication and a failover, so that
    the second one goes on where the first one ended."""
    return op_id("copy", parse_place(source), name, parse_place(target))


def own_folder(op: str) -> str:
    """Our folder of one copy at its target, relative to the root."""
    return f"{FOLDER}/copy-{op}"


def staging(op: str) -> str:
    """Where the files of a copy lie until they are published, under the paths that they will have in the root."""
    return f"{own_folder(op)}/staged"


def pin(op: str) -> str:
    """Hard links to the files of a source, so that nobody's retention can delete them while they are copied."""
    return f"{FOLDER}/pin-{op}"


def trouble(path: str) -> str:
    """Why a path in a root is not copied; empty for a good one."""
    if path.split("/")[0] == FOLDER:
        return f"lies in {FOLDER}, which is ours"
    return names.trouble(path)

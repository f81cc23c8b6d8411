"""Our own receipt of a checkpoint that was copied or proven: what it held, hash by hash, and when.

It lies in `.gpu-runbooks/receipts/` of the root, beside the checkpoint and never in it: no trainer trips over it.
"""

from typing import Annotated
from urllib.parse import quote

from pydantic import Field, StringConstraints

from fleet.checkpoints.model import FOLDER, Format
from fleet.model import Value

RECEIPTS = f"{FOLDER}/receipts"


class ReceiptFile(Value):
    """One file, as it was when its bytes were read."""

    path: str
    """Relative to the checkpoint root."""
    size: int = Field(ge=0)
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Receipt(Value):
    """Says that exactly these bytes were a complete checkpoint."""

    entry: str
    """`Entry.name`."""
    format: Format
    step: int | None = Field(ge=0)
    files: tuple[ReceiptFile, ...]
    """Data and markers."""
    source: str
    """Where it came from, in words: cluster and root."""
    at: float
    """Seconds since the epoch by the writing worker's clock."""


def receipt_path(entry: str) -> str:
    """Where the receipt of an entry lies, relative to the root; any entry's name makes one plain file name."""
    return f"{RECEIPTS}/{quote(entry, safe='')}.json"

"""Our own receipt of a checkpoint that was copied or proven: what it held, hash by hash, and when.

It lies in `.gpu-runbooks/receipts/` of the root, beside the checkpoint and never in it: no trainer trips over it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

from pydantic import Field, StringConstraints, ValidationError

from fleet.checkpoints.layout import Known, Named, Proof
from fleet.checkpoints.model import FOLDER, File, Format
from fleet.checkpoints.names import shown, trouble
from fleet.checkpoints.tree import NotProvenError, Tree
from fleet.model import Value

RECEIPTS = f"{FOLDER}/receipts"
LIMIT = 64 * 1024**2
"""Bytes of a receipt that are read: about 400,000 files."""


class ReceiptFile(Value):
    """One file, as it was when its bytes were read."""

    path: str
    """Relative to the checkpoint root."""
    size: int = Field(ge=0)
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    marker: bool = False
    """One of `Entry.markers`: a copy writes it after the data."""


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
    at: float = Field(ge=0, le=253_402_300_799)
    """Seconds since the epoch by the writing worker's clock."""

    @property
    def when(self) -> str:
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class Checked:
    """A receipt that fits what is there, and what a person is told about it."""

    receipt: Receipt | None = None
    note: str = ""


def receipt_path(entry: str) -> str:
    """Where the receipt of an entry lies, relative to the root; any entry's name makes one plain file name."""
    return f"{RECEIPTS}/{quote(entry, safe='')}.json"


def find_receipts(tree: Tree) -> Iterator[Receipt]:
    """Every readable receipt of the root that lies at its own entry's place."""
    for file in tree.files(RECEIPTS):
        try:
            receipt = _read(tree, file.path)
        except NotProvenError:
            continue
        if receipt_path(receipt.entry) == file.path and not trouble(receipt.entry):
            yield receipt


def check_receipt(tree: Tree, named: Named, known: Known) -> Checked:
    """The entry's receipt, held against the files; an old one that does not fit is void, and proves nothing."""
    path = receipt_path(named.name)
    if tree.file(path) is None:
        return Checked()
    try:
        receipt = _read(tree, path)
        _compare(tree, receipt)
        if known.hashes:
            _compare_hashes(tree, receipt)
    except NotProvenError as error:
        return Checked(note=f"its receipt is void: {error}")
    proof = "hashes" if known.hashes else "sizes; --hashes compares its hashes"
    return Checked(receipt, f"its receipt of {receipt.when} agrees ({proof})")


def prove_by_receipt(tree: Tree, named: Named, receipt: Receipt) -> Proof:
    """Reads every file, for equal sizes prove nothing. Raises NotProvenError."""
    tree.refuse_strangers(receipt.entry)
    files = _compare(tree, receipt)
    _compare_hashes(tree, receipt)
    if named.step is not None and receipt.step not in {None, named.step}:
        raise NotProvenError(f"its receipt is of step {receipt.step}")
    markers = {listed.path for listed in receipt.files if listed.marker}
    return Proof(
        says=f"all {len(files)} files have the hashes of its receipt of {receipt.when}",
        data=tuple(f for f in files if f.path not in markers),
        markers=tuple(f for f in files if f.path in markers),
        step=receipt.step,
    )


def _read(tree: Tree, path: str) -> Receipt:
    try:
        return Receipt.model_validate_json(tree.small(path, LIMIT))
    except (ValidationError, ValueError):
        raise NotProvenError(f"{shown(path)} is no receipt") from None


def _compare(tree: Tree, receipt: Receipt) -> tuple[File, ...]:
    if not receipt.files:
        raise NotProvenError("it lists no file")
    files = []
    for listed in receipt.files:
        file = tree.file(listed.path)
        if file is None:
            raise NotProvenError(f"{shown(listed.path)} is missing")
        if file.size != listed.size:
            raise NotProvenError(f"{shown(listed.path)} has {file.size} bytes, not {listed.size}")
        files.append(file)
    return tuple(files)


def _compare_hashes(tree: Tree, receipt: Receipt) -> None:
    for listed in receipt.files:
        if tree.sha256(listed.path) != listed.sha256:
            raise NotProvenError(f"{shown(listed.path)} is not the file that the receipt lists")

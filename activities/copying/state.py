"""What a copy keeps at its target between tries, and where its files lie: `.gpu-runbooks/copy-<op>/`.

`manifest.json` is written once, by the first try; `owner` names the try that may write; `proof.json` says what was
read back; `publishing` says that the final name may hold files of ours.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from activities.copy_api import CopyOrder
from activities.copying.rclone import Rclone
from activities.copying.stores import MANIFEST_LIMIT, Store, open_store
from fleet.checkpoints.names import shown
from fleet.checkpoints.receipts import Receipt, receipt_path
from fleet.copying.manifest import STRONGEST, Manifest, Parts, Seen
from fleet.copying.places import own_folder, parse_place, pin, staging
from fleet.errors import RefusedError, TemporaryError, UnreadableError
from fleet.model import Value

Model = TypeVar("Model", bound=Value)


class Proven(Value):
    """`proof.json`."""

    digest: str
    sha256: Mapping[str, str]
    """Path to the hash of what was read at the target."""


class Rules(Value):
    """What the policy says about copies."""

    bandwidth: float | None = None
    """Bytes a second at most."""
    headroom: float = 5.0
    """Percent of the free space that stays free."""
    files_at_once: int = 8


class Ground:
    """The two stores of an order and what lies between them."""

    def __init__(self, order: CopyOrder, rules: Rules, rclone: Rclone) -> None:
        self.order = order
        self.rules = rules
        self.rclone = rclone
        self.source: Store = open_store(parse_place(order.source), rclone)
        self.target: Store = open_store(parse_place(order.target), rclone)
        self.own = own_folder(order.op)
        self.staged = staging(order.op)
        self.pin = pin(order.op)
        self.receipt_at = receipt_path(order.parts.name)
        self._token = uuid.uuid4().hex
        self._listed_hash: str | None = None

    # -- kept between tries

    async def manifest(self) -> Manifest | None:
        """The manifest of the first try. Raises RefusedError when this operation was asked to copy something else."""
        data = await self.target.read(f"{self.own}/manifest.json", MANIFEST_LIMIT)
        if data is None:
            return None
        manifest = _valid(Manifest, data, "the manifest of this copy")
        if manifest.parts != self.order.parts:
            raise RefusedError(
                f"operation {self.order.op} copied {shown(manifest.parts.name)} in another way before; ask for it "
                "with a new operation id, or drop that copy first"
            )
        return manifest

    async def keep_manifest(self, manifest: Manifest) -> None:
        """Fixes it for all later tries."""
        await self.target.write(f"{self.own}/manifest.json", manifest.model_dump_json().encode())

    async def proven(self) -> Proven | None:
        """What was read back; None when nothing was yet."""
        data = await self.target.read(f"{self.own}/proof.json", MANIFEST_LIMIT)
        return None if data is None else _valid(Proven, data, "the proof of this copy")

    async def receipt(self) -> Receipt | None:
        """Our receipt of the entry at the target; None when there is none that can be read: it is written anew."""
        data = await self.target.read(self.receipt_at, MANIFEST_LIMIT)
        try:
            return None if data is None else Receipt.model_validate_json(data)
        except ValidationError:
            return None

    async def publishing(self) -> bool:
        """Whether the final name may hold files of this copy."""
        return await self.target.read(f"{self.own}/publishing") is not None

    async def set_publishing(self) -> None:
        """Said before the first file gets its final name."""
        await self.target.write(f"{self.own}/publishing", self._token.encode())

    async def take(self) -> None:
        """Makes this try the owner of the staging area."""
        await self.target.write(f"{self.own}/owner", self._token.encode())

    async def check_owner(self) -> None:
        """Raises TemporaryError when another try has taken over: what this one saw may be old."""
        if await self.target.read(f"{self.own}/owner") != self._token.encode():
            raise TemporaryError(f"another try of copy {self.order.op} has taken over", delay=5)

    async def listed_hash(self) -> str:
        """The kind of hash that a listing of the target tells, and tells right of a file whose bytes we know; empty
        when there is none. Asked while this try is the owner, and once."""
        if self._listed_hash is None:
            path = f"{self.own}/owner"
            seen = (await self.target.listed(path)).get(path)
            known = {kind: hashlib.new(kind, self._token.encode()).hexdigest() for kind in STRONGEST}
            self._listed_hash = "" if seen is None else next((k for k in known if seen.hashes.get(k) == known[k]), "")
        return self._listed_hash

    # -- where files lie

    async def data_folder(self, parts: Parts) -> str:
        """Where data goes before it is published: staging; on a store that cannot rename a folder, the final place
        when the checkpoint has markers, for without them it counts as unfinished there (docs/decisions)."""
        if not (parts.markers or parts.made) or await self.target.renames():
            return self.staged
        return ""

    async def in_staging(self) -> dict[str, Seen]:
        """Files in staging, by the paths that they will have."""
        found = await self.target.listed(self.staged)
        return {path.removeprefix(self.staged + "/"): seen for path, seen in found.items()}

    async def in_place(self, parts: Parts, files: Iterable[str] = ()) -> dict[str, Seen]:
        """Files under the final names."""
        return await self.target.listed(*tops(parts, files))


def tops(parts: Parts, files: Iterable[str] = ()) -> tuple[str, ...]:
    """What must be listed to see an entry whole: its folder, and what it names outside of it."""
    named = (*parts.data, *parts.markers, *(small.path for small in parts.made), *files)
    outside = {path for path in named if path != parts.name and not path.startswith(parts.name + "/")}
    return (parts.name, *sorted(outside))


def below(folder: str, path: str) -> str:
    """A path in a folder of the root; the root itself is empty."""
    return f"{folder}/{path}" if folder else path


def _valid(kind: type[Model], data: bytes, what: str) -> Model:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise UnreadableError(f"{what} cannot be read; drop the copy, then it begins anew") from error

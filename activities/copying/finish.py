"""The end of a copy: read back at the target, published under its final name, and what is left of it taken away."""

import time
from collections.abc import Callable, Mapping

from activities.copy_api import Proof, Published
from activities.copying.folder import FolderStore
from activities.copying.state import Ground, Proven, below
from activities.copying.stores import no_count
from activities.copying.work import Meters
from fleet.checkpoints.model import FOLDER
from fleet.checkpoints.names import shown
from fleet.checkpoints.receipts import Receipt, ReceiptFile
from fleet.copying.manifest import STRONGEST, Manifest, Role, difference, right_size, units
from fleet.errors import RefusedError, TemporaryError

SHA256 = STRONGEST[0]


class Finishing:
    """Proves, publishes and drops the copy of one order."""

    def __init__(self, ground: Ground, meters: Meters) -> None:
        self.ground = ground
        self._meters = meters
        self._order = ground.order

    # -- prove

    async def prove(self) -> Proof:
        """Reads every byte at the target. What is wrong is taken away while it is not published."""
        started = time.monotonic()
        g = self.ground
        manifest = await g.manifest() or await self._from_receipt()
        staged, final = await g.in_staging(), await g.in_place(manifest.parts)
        at = {f.path: below(g.staged, f.path) if f.path in staged else f.path for f in manifest.files}
        made = {small.path for small in manifest.parts.made}
        seen = {path: told for path, told in {**final, **staged}.items() if path not in made}
        kinds = tuple({SHA256, *(_strongest(f.hashes) for f in manifest.files)})
        meter = self._meters.begin("prove", manifest.size)
        present = right_size(manifest.files, seen)
        read = await g.target.hashes([at[f.path] for f in present], kinds, read_back=True, count=meter.add)
        hashes = {f.path: read.get(at[f.path], {}) for f in present}
        found = difference(manifest.files, seen, hashes)
        proof = Proof(
            ok=found.same,
            text=found.text(),
            files=len(manifest.files),
            size=manifest.size,
            seconds=time.monotonic() - started,
        )
        if found.same:
            sha256 = {path: made[SHA256] for path, made in hashes.items()}
            await self._keep(Proven(digest=manifest.digest, sha256=sha256))
        elif not await g.publishing() and await g.receipt() is None:
            await g.target.remove([at[path] for path in (*found.wrong, *found.unproven)])
        return proof

    async def _keep(self, proven: Proven) -> None:
        await self.ground.target.write(f"{self.ground.own}/proof.json", proven.model_dump_json().encode())

    async def _from_receipt(self) -> Manifest:
        """The manifest of a copy that was dropped after it was published."""
        receipt = await self.ground.receipt()
        if receipt is None:
            raise RefusedError(f"{shown(self._order.parts.name)} was not copied there; copy it first")
        return Manifest.model_validate(
            {
                "parts": self._order.parts,
                "files": [
                    {"path": f.path, "size": f.size, "modified": 0.0, "hashes": {SHA256: f.sha256}}
                    for f in receipt.files
                ],
            }
        )

    # -- publish

    async def publish(self) -> Published:
        """Final names, data before markers; then the tracker; then the receipt. Only what was proven.

        Raises RefusedError before the first write when there is no proof.
        """
        started = time.monotonic()
        g = self.ground
        manifest = await g.manifest()
        if manifest is None:
            return await self._was_published(started)
        proven = await g.proven()
        if proven is None or proven.digest != manifest.digest:
            raise RefusedError(
                f"{shown(manifest.parts.name)} was not read back at the target yet; prove the copy first"
            )
        if not await self._is_final(manifest):
            await g.set_publishing()
            if await g.target.renames():
                await self._by_rename(manifest)
            else:
                await self._object_by_object(manifest)
            if not await self._is_final(manifest):
                raise TemporaryError(f"{shown(manifest.parts.name)} is not whole under its final name yet", delay=2)
        await self._trackers(manifest)
        self._give_fresh_root(manifest)
        receipt = self._receipt(manifest, proven)
        if await g.receipt() is None or not _same(receipt, await g.receipt()):
            await g.target.write(g.receipt_at, receipt.model_dump_json(indent=1).encode())
        await g.target.remove_folder(g.staged)
        return Published(receipt=g.receipt_at, digest=manifest.digest, seconds=time.monotonic() - started)

    async def _was_published(self, started: float) -> Published:
        """Asked again after the copy was dropped: the receipt and the files are the answer."""
        g = self.ground
        receipt = await g.receipt()
        if receipt is not None:
            manifest = await self._from_receipt()
            if len(right_size(manifest.files, await g.in_place(manifest.parts))) == len(manifest.files):
                return Published(receipt=g.receipt_at, seconds=time.monotonic() - started)
        raise RefusedError(f"{shown(self._order.parts.name)} was not copied there; copy it first")

    async def _is_final(self, manifest: Manifest) -> bool:
        """Every file under its final name: by its size after a rename, by the store's hash after a copy."""
        g = self.ground
        made = [small.path for small in manifest.parts.made]
        final = await g.in_place(manifest.parts, made)
        if not set(made) <= set(final) or len(right_size(manifest.files, final)) < len(manifest.files):
            return False
        if await g.target.renames():
            return True
        kinds = [k for k in await g.target.kinds() if all(f.hashes.get(k) for f in manifest.files)][:1]
        read = await g.target.hashes(
            [f.path for f in manifest.files], kinds or (SHA256,), read_back=not kinds, count=no_count
        )
        proven = await g.proven()
        files = [
            f.model_copy(update={"hashes": {**f.hashes, SHA256: proven.sha256[f.path]}}) if proven else f
            for f in manifest.files
        ]
        only = {path: told for path, told in final.items() if path in {f.path for f in files}}
        return difference(files, only, read).same

    async def _by_rename(self, manifest: Manifest) -> None:
        g = self.ground
        staged = await g.in_staging()
        if isinstance(g.target, FolderStore):
            meter = self._meters.begin("publish", manifest.size)
            await g.target.flush([below(g.staged, path) for path in staged], meter.add)
            if self._order.owner:
                await g.target.give(g.staged, self._order.owner)
        for unit in units(manifest.files, manifest.parts.made, manifest.parts.name):
            if any(path == unit or path.startswith(unit + "/") for path in staged):
                await g.target.rename(below(g.staged, unit), unit)

    async def _object_by_object(self, manifest: Manifest) -> None:
        """On a store without renames: copied within the store, data first, then markers, then what was made."""
        g = self.ground
        staged = await g.in_staging()
        waves = [[f.path for f in manifest.of(role)] for role in Role] + [[s.path for s in manifest.parts.made]]
        for wave in waves:
            moving = [path for path in wave if path in staged]
            meter = self._meters.begin("publish", manifest.size)
            if moving:
                await self._within(moving, meter.set)

    async def _within(self, paths: list[str], on_bytes: Callable[[int], None]) -> None:
        g = self.ground

        def on_stats(stats: Mapping[str, object]) -> None:
            if isinstance(size := stats.get("bytes"), int):
                on_bytes(size)

        words = ["copy", g.target.place.at(g.staged), g.target.place.at("")]
        words += ["--no-traverse", "--no-check-dest", "--transfers", str(g.rules.files_at_once)]
        await g.rclone.transfer(words, on_stats, paths)

    async def _trackers(self, manifest: Manifest) -> None:
        g = self.ground
        for small in manifest.parts.trackers:
            data = small.text.encode() if small.text is not None else await g.target.read(small.like or "")
            if data is None:
                raise RefusedError(f"{shown(small.path)} is to be like {shown(small.like)}, which is not in the copy")
            if await g.target.read(small.path) != data:
                await g.target.write(small.path, data)
            if self._order.owner and isinstance(g.target, FolderStore):
                g.target.give_file(small.path, self._order.owner)

    def _give_fresh_root(self, manifest: Manifest) -> None:
        """A root that holds nothing but this copy was made by us; the job must be able to save there."""
        target = self.ground.target
        if self._order.owner and isinstance(target, FolderStore):
            paths = (
                manifest.parts.name,
                *(f.path for f in manifest.files),
                *(s.path for s in manifest.parts.trackers),
            )
            if target.names() <= {FOLDER, *(path.split("/")[0] for path in paths)}:
                target.give_file("", self._order.owner)

    def _receipt(self, manifest: Manifest, proven: Proven) -> Receipt:
        return Receipt(
            entry=manifest.parts.name,
            format=manifest.parts.format,
            step=manifest.parts.step,
            files=tuple(ReceiptFile(path=f.path, size=f.size, sha256=proven.sha256[f.path]) for f in manifest.files),
            source=self._order.origin or self._order.source,
            at=time.time(),
        )

    # -- drop

    async def drop(self) -> None:
        """Takes away our folder at the target and our links at the source. What is published stays; data that lies
        under its final name unpublished goes, file by file of the manifest."""
        g = self.ground
        manifest = await g.manifest()
        if manifest is not None and not await g.publishing() and await g.data_folder(manifest.parts) == "":
            await g.target.remove([f.path for f in manifest.of(Role.DATA)])
        await g.target.remove_folder(g.own)
        if isinstance(g.source, FolderStore):
            await g.source.remove_folder(g.pin)


def _strongest(hashes: Mapping[str, str]) -> str:
    return next(kind for kind in STRONGEST if hashes.get(kind))


def _same(one: Receipt, other: Receipt | None) -> bool:
    return other is not None and one.model_copy(update={"at": other.at}) == other

"""The copy itself: manifest, pin, staging, data first, markers after it, each compared by hash. Knows no Temporal.

Every step looks first at what is there, so it may be killed anywhere and begun again: what is found right in staging
is not copied again.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from activities.copy_api import Copied, CopyProgress, Survey
from activities.copying.folder import FolderStore, cannot_give
from activities.copying.state import Ground, below, tops
from activities.copying.stores import SMALL, Store, common_kinds
from fleet.checkpoints.names import shown
from fleet.copying.manifest import (
    STRONGEST,
    Difference,
    Manifest,
    ManifestFile,
    Role,
    Seen,
    changed_since,
    difference,
    make_manifest,
    parse_sums,
    right_size,
    same_hash,
)
from fleet.copying.space import Fits, judge_space, seconds_for
from fleet.errors import NotFoundError, PermanentError, RefusedError, TemporaryError

Beat = Callable[[CopyProgress], None]
_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.partial$")
"""How rclone names what it has not finished (`--partial-suffix`, with the hash of the target's name)."""
ONE_PIECE = 200 << 20
"""Bytes up to which an upload to S3 is one piece, whose hash the store tells; rclone's own default."""
_RATE_SPAN = 5.0
"""Seconds over which a rate is told."""


class Meter:
    """Counts bytes of one step and tells them."""

    def __init__(self, beat: Beat, step: str, total: int, done: int = 0) -> None:
        self._beat, self._step, self._total = beat, step, total
        self.done = done
        self._marks = [(time.monotonic(), done)]
        self._lock = threading.Lock()
        self.tell()

    def add(self, size: int) -> None:
        """So many more; may come from any thread."""
        with self._lock:
            self.set(self.done + size)

    def set(self, done: int) -> None:
        """So many in all."""
        self.done = done
        now = time.monotonic()
        if now - self._marks[-1][0] > 0.5:
            self._marks = [mark for mark in self._marks if now - mark[0] < _RATE_SPAN] or self._marks[-1:]
            self._marks.append((now, done))

    def tell(self) -> None:
        """Beats with what is counted."""
        (t0, d0), (t1, d1) = self._marks[0], self._marks[-1]
        rate = (d1 - d0) / (t1 - t0) if t1 > t0 else 0.0
        self._beat(CopyProgress(step=self._step, done=self.done, total=self._total, rate=max(rate, 0.0)))


class Copying:
    """Brings the files of one order into staging."""

    def __init__(self, ground: Ground, meters: "Meters") -> None:
        self.ground = ground
        self._meters = meters
        self._order = ground.order
        self._pinned = "the source is no folder of this machine"
        self._proofs: dict[str, str] = {}

    async def run(self) -> Copied:
        """Raises RefusedError with the reason that disqualifies the source, or when the target is full or holds
        something of others; TemporaryError for what another try may mend."""
        started = time.monotonic()
        g = self.ground
        manifest, _ = await asyncio.gather(g.manifest(), g.target.kinds())  # the second is kept by the store
        fresh = manifest is None
        if manifest is None:
            manifest, there = await self._begin()
        else:
            there = await g.publishing()
            self._pinned = "" if await self._base() else self._pinned
            await g.take()
        if there:
            return self._result(manifest, 0, started)
        folder = await g.data_folder(manifest.parts)
        staged: dict[str, Seen] = {}
        under: dict[str, Seen] = {}
        if not fresh:
            await self._refuse_foreign(manifest, folder)
            staged = await self._without_partials(await g.in_staging())
            under = await self._under_final_names(manifest.of(Role.DATA)) if folder == "" else {}
            here = {file.path for seen in (staged, under) for file in right_size(manifest.files, seen)}
            await self._check_room(manifest, sum(file.size for file in manifest.files if file.path not in here))
        moved = 0
        for role, where, step in ((Role.DATA, folder, "copy data"), (Role.MARKER, g.staged, "copy markers")):
            files = manifest.of(role)
            moved += await self._bring(manifest, files, where, step, staged if where == g.staged else under)
        await self._make(manifest, folder)
        await asyncio.gather(self._nothing_else(manifest), g.check_owner())
        return self._result(manifest, moved, started)

    def _result(self, manifest: Manifest, moved: int, started: float) -> Copied:
        counts: dict[str, int] = {}
        for proof in self._proofs.values():
            counts[proof] = counts.get(proof, 0) + 1
        return Copied(
            files=len(manifest.files),
            size=manifest.size,
            copied=moved,
            kept=manifest.size - moved,
            digest=manifest.digest,
            proofs=counts,
            pinned=self._pinned,
            seconds=time.monotonic() - started,
        )

    # -- before the first byte

    async def survey(self) -> Survey:
        """What a copy would take; writes one small file and takes it away again, to see that we may."""
        g = self.ground
        listed = await self._source_listing()
        manifest = await g.manifest() or make_manifest(self._order.parts, listed, await self._sums())
        problems = []
        if self._order.owner and isinstance(g.target, FolderStore):
            problems.append(cannot_give(self._order.owner))
        receipt = await g.receipt()
        final = await g.in_place(manifest.parts)
        published = receipt is not None and len(right_size(manifest.files, final)) == len(manifest.files)
        staged = await g.in_staging()
        here = {f.path for seen in (staged, final) for f in right_size(manifest.files, seen)}
        to_copy = sum(f.size for f in manifest.files if f.path not in here)
        if final and not published and not await g.manifest() and not _alike(manifest, final):
            problems.append(
                f"{g.target.place.at(manifest.parts.name)} is there already and is another one: move it away"
            )
        fits = await self._fits(manifest, to_copy)
        if fits.ok is False:
            problems.append(fits.text)
        try:
            await g.target.write(f"{g.own}/probe", b"probe")
            await g.target.remove([f"{g.own}/probe"])
        except (PermanentError, NotFoundError) as error:
            problems.append(str(error))
        return Survey(
            files=len(manifest.files),
            size=manifest.size,
            to_copy=0 if published else to_copy,
            published=published,
            fits=fits.ok,
            room=fits.text,
            seconds=seconds_for(to_copy, len(manifest.files), g.rules.bandwidth, g.rules.files_at_once),
            problems=tuple(problem for problem in problems if problem),
        )

    async def _source_listing(self) -> dict[str, Seen]:
        return await self.ground.source.listed(*tops(self._order.parts))

    async def _sums(self) -> dict[str, str] | None:
        path = self._order.parts.sums
        if path is None:
            return None
        data = await self.ground.source.read(path, 100 * SMALL)
        if data is None:
            raise RefusedError(f"the manifest {shown(path)} is not at the source")
        return parse_sums(data.decode(errors="replace"), path.rpartition("/")[0])

    async def _fits(self, manifest: Manifest, to_copy: int) -> Fits:
        g = self.ground
        # Without a rename, what goes through staging lies there twice for a while.
        twice = await g.data_folder(manifest.parts) == g.staged and not await g.target.renames()
        needed = to_copy + (manifest.size if twice else 0)
        return judge_space(needed, await g.target.space(), g.rules.headroom)

    async def _begin(self) -> tuple[Manifest, bool]:
        """The first try: manifest with hashes, pin, what is there already, room. True: it is there already."""
        g = self.ground
        listed, sums, final = await asyncio.gather(
            self._source_listing(), self._sums(), g.in_place(self._order.parts)
        )
        made = make_manifest(self._order.parts, listed, sums)
        if not final:
            await self._check_room(made, made.size)
        await self._pin(made)
        manifest = await self._hashed(made, listed)
        if final:
            await self._check_same(manifest, final)
            await g.set_publishing()
        await asyncio.gather(g.take(), g.keep_manifest(manifest))
        return manifest, bool(final)

    async def _check_same(self, manifest: Manifest, final: Mapping[str, Seen]) -> None:
        """What lies under the final name is what we would copy, to the last file. Raises RefusedError."""
        found = await self._compare(manifest.files, final, "", "check the target")
        made = {small.path for small in manifest.parts.made}
        extra = sorted(set(final) - {file.path for file in manifest.files} - made)
        found = found.model_copy(update={"extra": tuple(extra)})
        if not found.same:
            raise RefusedError(
                f"{self.ground.target.place.at(manifest.parts.name)} is there already and is another one "
                f"({found.text()}); nothing is ever merged into it: move it away, or choose another root"
            )

    async def _check_room(self, manifest: Manifest, to_copy: int) -> None:
        fits = await self._fits(manifest, to_copy)
        if fits.ok is False:
            raise RefusedError(f"there is no room at the target: {fits.text}")

    async def _pin(self, manifest: Manifest) -> None:
        g = self.ground
        if isinstance(g.source, FolderStore):
            paths = [file.path for file in manifest.files]
            self._pinned = await g.source.link(paths, g.pin)
            if why := changed_since(manifest, await self._base_listing(manifest)):
                raise RefusedError(f"{why}; this candidate is out, take the next one")

    async def _base(self) -> str:
        """Folder of the source that is read: our links, where there are some."""
        g = self.ground
        return g.pin if isinstance(g.source, FolderStore) and await g.source.listed(g.pin) else ""

    async def _base_listing(self, manifest: Manifest) -> dict[str, Seen]:
        g = self.ground
        base = await self._base()
        if not base:
            return await g.source.listed(*tops(manifest.parts, [file.path for file in manifest.files]))
        return {path.removeprefix(base + "/"): seen for path, seen in (await g.source.listed(base)).items()}

    async def _hashed(self, manifest: Manifest, listed: Mapping[str, Seen]) -> Manifest:
        """With a hash of each file. Raises RefusedError where a dataset's own is another, or a file vanished."""
        base = await self._base()
        paths = [below(base, file.path) for file in manifest.files]
        meter = self._meters.begin("read source", manifest.size)
        source = self.ground.source
        found = {path: dict(seen.hashes) for path, seen in listed.items() if seen.hashes}
        for kinds, read_back in ((await self._manifest_kinds(manifest), False), (STRONGEST[:1], True)):
            blank = [path for path in paths if not any(found.get(path, {}).values())]
            if blank and (source.place.remote or not read_back):
                found |= await source.hashes(blank, kinds, read_back=read_back, count=meter.add)
        files = []
        for file, path in zip(manifest.files, paths, strict=True):
            read = found.get(path, {})
            if not any(read.values()):
                raise RefusedError(f"{shown(file.path)} vanished from the source; this candidate is out")
            if same_hash(file.hashes, read) is False:
                raise RefusedError(f"{shown(file.path)} at the source is not what its manifest says; mend it there")
            files.append(file.model_copy(update={"hashes": {**file.hashes, **read}}))
        hashed = manifest.model_copy(update={"files": tuple(files)})
        if why := changed_since(hashed, await self._base_listing(hashed)):
            raise RefusedError(f"{why}; this candidate is out, take the next one")
        return hashed

    async def _manifest_kinds(self, manifest: Manifest) -> Sequence[str]:
        """SHA-256 where reading gives it for nothing more, and the strongest that the target tells by itself."""
        g = self.ground
        own = {kind for file in manifest.files for kind in file.hashes}
        both = common_kinds(await g.source.kinds(), await g.target.kinds())[:1]
        if g.source.place.remote:
            return both or (await g.source.kinds())[:1]
        return tuple(kind for kind in STRONGEST if kind in {STRONGEST[0], *both, *own})

    # -- the bytes

    async def _refuse_foreign(self, manifest: Manifest, folder: str) -> None:
        """Under the final name lies nothing yet, except our own data where it goes there at once."""
        g = self.ground
        final = await g.in_place(manifest.parts)
        strange = set(final) - ({file.path for file in manifest.of(Role.DATA)} if folder == "" else set())
        if strange:
            raise RefusedError(
                f"{g.target.place.at(min(strange))} appeared under the name that is being copied; nothing is ever "
                "merged into what others wrote: move it away, then the copy goes on"
            )

    async def _bring(
        self, manifest: Manifest, files: Sequence[ManifestFile], folder: str, step: str, seen: Mapping[str, Seen]
    ) -> int:
        """Copies what is not there as the manifest says; gives the bytes moved. All of it is right afterwards.

        `seen`: what lies in `folder` now.
        """
        there = right_size(files, seen)
        before = await self._compare(there, seen, folder, "check staging")
        again = {*before.again, *(file.path for file in files)} - {
            f.path for f in there if f.path not in before.again
        }
        if not again:
            return 0
        await self._source_still(manifest)
        moving = [file for file in files if file.path in again]
        size = sum(file.size for file in moving)
        meter = self._meters.begin(step, sum(file.size for file in files), sum(file.size for file in files) - size)
        await self._transfer(await self._base(), folder, moving, meter)
        if folder == self.ground.staged:
            now = await self.ground.in_staging()
        else:
            now = await self._under_final_names(moving)
        after = await self._compare(moving, now, folder, "check staging")
        if after.again or after.unproven:
            await self._say_why(manifest, after)
        return size

    async def _transfer(self, base: str, folder: str, files: Sequence[ManifestFile], meter: Meter) -> None:
        """Whatever rclone compares itself here, the manifest's hash decides afterwards."""
        g = self.ground
        words = ["copy", g.source.place.at(base), g.target.place.at(folder)]
        words += ["--no-traverse", "--no-check-dest", "--transfers", str(g.rules.files_at_once)]
        if g.rules.bandwidth is not None:
            words += ["--bwlimit", f"{max(1, int(g.rules.bandwidth))}B"]
        if not g.source.place.remote and not g.target.place.remote:
            await self._moved([*words, "--local-hashes", "xxh128"], files, meter)
            return
        limit = ONE_PIECE if await self._need_no_hash(files) else -1
        small, others = [f for f in files if f.size <= limit], [f for f in files if f.size > limit]
        if small:
            await self._moved([*words, "--local-hashes", "none", "--s3-upload-cutoff", f"{ONE_PIECE}B"], small, meter)
        if others:
            await self._moved(words, others, meter)

    async def _moved(self, words: Sequence[str], files: Sequence[ManifestFile], meter: Meter) -> None:
        start = meter.done

        def on_stats(stats: Mapping[str, Any]) -> None:
            meter.set(start + int(stats.get("bytes", 0)))

        await self.ground.rclone.transfer(words, on_stats, sorted(file.path for file in files))

    async def _need_no_hash(self, files: Sequence[ManifestFile]) -> bool:
        """The target's listing tells a hash of what it got, and the manifest has it: rclone need not make it a second
        time. A store that keeps rclone's hash, not its own (a bucket with keys of a KMS), is not such a one."""
        kind = "" if self.ground.source.place.remote else await self.ground.listed_hash()
        return bool(kind) and all(file.hashes.get(kind) for file in files)

    async def _under_final_names(self, files: Sequence[ManifestFile]) -> dict[str, Seen]:
        wanted = {file.path for file in files}
        final = await self.ground.in_place(self.ground.order.parts, wanted)
        return {path: seen for path, seen in final.items() if path in wanted}

    async def _without_partials(self, staged: Mapping[str, Seen]) -> dict[str, Seen]:
        """Takes away what a killed rclone had not finished; such names occur in our staging only."""
        g = self.ground
        left = [path for path in staged if _PARTIAL.search(path)]
        await g.target.remove([below(g.staged, path) for path in left])
        return {path: seen for path, seen in staged.items() if path not in left}

    async def _compare(
        self, files: Sequence[ManifestFile], seen: Mapping[str, Seen], folder: str, step: str
    ) -> Difference:
        """By a hash that the target tells; where it tells none that we know, by reading it back."""
        g = self.ground
        present = right_size(files, seen)
        meter = self._meters.begin(step, sum(file.size for file in present))
        known = {kind for file in files for kind in file.hashes}
        kinds = common_kinds(await g.target.kinds(), known)[:1]
        listed = {
            f.path: seen[f.path].hashes for f in present if same_hash(f.hashes, seen[f.path].hashes) is not None
        }
        asked = [file for file in present if file.path not in listed]
        found = {**listed, **await self._hashes_at(g.target, asked, folder, kinds, meter, read_back=False)}
        first = difference(files, _only(seen, files), found)
        self._note(present, found, "store" if g.target.place.remote else "read")
        if not first.unproven:
            return first
        dark = [file for file in present if file.path in set(first.unproven)]
        for kind in {next(k for k in STRONGEST if file.hashes.get(k)) for file in dark}:
            some = [file for file in dark if file.hashes.get(kind)]
            read = await self._hashes_at(g.target, some, folder, (kind,), meter, read_back=True)
            found.update(read)
            self._note(some, read, "read")
        return difference(files, _only(seen, files), found)

    @staticmethod
    async def _hashes_at(
        store: Store,
        files: Sequence[ManifestFile],
        folder: str,
        kinds: Sequence[str],
        meter: Meter,
        *,
        read_back: bool,
    ) -> dict[str, Mapping[str, str]]:
        if not files or not kinds:
            return {}
        paths = {below(folder, file.path): file.path for file in files}
        found = await store.hashes(list(paths), kinds, read_back=read_back, count=meter.add)
        return {paths[path]: made for path, made in found.items()}

    def _note(self, files: Sequence[ManifestFile], found: Mapping[str, Mapping[str, str]], proof: str) -> None:
        self._proofs.update({f.path: proof for f in files if same_hash(f.hashes, found.get(f.path, {}))})

    async def _source_still(self, manifest: Manifest) -> None:
        if why := changed_since(manifest, await self._base_listing(manifest)):
            raise RefusedError(f"{why}; this candidate is out, take the next one")

    async def _say_why(self, manifest: Manifest, after: Difference) -> None:
        """What arrived is not what the manifest says: is it the source or the way? Raises."""
        g = self.ground
        await self._source_still(manifest)
        files = [file for file in manifest.files if file.path in set(after.wrong)]
        if files and not g.source.place.remote:
            base = await self._base()
            meter = self._meters.begin("read source", sum(file.size for file in files))
            found = await self._hashes_at(
                g.source, files, base, await self._manifest_kinds(manifest), meter, read_back=True
            )
            now = difference(files, {f.path: Seen(size=f.size) for f in files}, found)
            if now.wrong:
                raise RefusedError(
                    f"{shown(now.wrong[0])} reads otherwise at the source than when the copy began, with the same "
                    "size and time: its storage or memory is damaged; this candidate is out, take the next one"
                )
        raise TemporaryError(f"damaged or lost on its way: {after.text()}; it is copied again", delay=2)

    # -- what is made at the target

    async def _make(self, manifest: Manifest, folder: str) -> None:
        g = self.ground
        for small in manifest.parts.made:
            data = (
                small.text.encode()
                if small.text is not None
                else await g.target.read(below(folder, small.like or ""))
            )
            if data is None:
                raise RefusedError(f"{shown(small.path)} is to be like {shown(small.like)}, which is not in the copy")
            at = below(g.staged, small.path)
            if await g.target.read(at) != data:
                await g.target.write(at, data)

    async def _nothing_else(self, manifest: Manifest) -> None:
        """Staging holds exactly what is published. Raises RefusedError."""
        ours = {file.path for file in manifest.files} | {small.path for small in manifest.parts.made}
        strange = set(await self.ground.in_staging()) - ours
        if strange:
            raise RefusedError(
                f"{shown(min(strange))} lies in our staging area {self.ground.staged} and is not of this copy; "
                "take it away"
            )


class Meters:
    """The step that is under way; one `tell` a second makes the heartbeat."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._now: Meter | None = None

    def begin(self, step: str, total: int, done: int = 0) -> Meter:
        """The next step."""
        self._now = Meter(self._beat, step, total, done)
        return self._now

    def tell(self) -> None:
        """Beats with where it is."""
        if self._now is not None:
            self._now.tell()


def _only(seen: Mapping[str, Seen], files: Sequence[ManifestFile]) -> dict[str, Seen]:
    wanted = {file.path for file in files}
    return {path: told for path, told in seen.items() if path in wanted}


def _alike(manifest: Manifest, final: Mapping[str, Seen]) -> bool:
    """By names and sizes it could be the very one; the copy compares every byte before it takes it for that."""
    made = {small.path for small in manifest.parts.made}
    return len(right_size(manifest.files, final)) == len(manifest.files) == len(set(final) - made)

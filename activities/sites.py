"""What is asked of the storage of a job: which checkpoint is complete, and whether a copy could be made there."""

import asyncio
import contextlib
import os
import pwd
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from activities import site_api
from activities.checkpoints import Alive, look_closely
from activities.copying.folder import cannot_give
from activities.copying.rclone import Rclone
from activities.copying.state import Ground, Rules
from activities.copying.stores import open_store
from activities.copying.work import Copying, Meters
from activities.registry import implements
from activities.runtime import Owner
from activities.site_api import FoundCheckpoint, FoundCheckpoints, FoundDataset, SiteAsk, SiteSeen
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import FOLDER, Candidate, Judgement
from fleet.checkpoints.names import shown
from fleet.checkpoints.receipts import receipt_path
from fleet.copying.manifest import parse_sums, parts_of
from fleet.copying.places import own_folder, parse_place
from fleet.copying.space import size_text
from fleet.errors import NotFoundError, PermanentError, RefusedError
from fleet.preflight import Check, CheckName, failed, passed
from fleet.sites import Storage

STEPS = 1000
"""Steps of complete checkpoints that are told; more of them are in no history."""
REFUSED = 5
"""Newer candidates that are told with their reason."""


class SiteActivities(Owner):
    """Runs on `data.<site>`, next to the storage."""

    @implements(site_api.FIND_CHECKPOINTS)
    async def find_checkpoints(self, arg: site_api.FindCheckpoints) -> FoundCheckpoints:
        """By the judgement of `runbook checkpoints`; a root that is not there holds nothing."""
        root = self._root(arg.storage)
        absent = FoundCheckpoints(site=arg.storage.site, there=False, at=time.time())
        if root is None:
            return absent
        with _stopping() as alive:
            try:
                found, files = await asyncio.to_thread(look_closely, root, Known(total_steps=arg.total_steps), alive)
            except NotFoundError:
                return absent
        if not any(path.split("/")[0] != FOLDER for path in files):
            return absent.model_copy(update={"there": True})  # no file of the job's: an empty root is no riddle
        return _told(arg.storage.site, found, frozenset(files))

    def _root(self, storage: Storage) -> Path | None:
        """The folder, links followed; None where it is not there.

        Raises RefusedError where it leads out of the site's own storage, NotFoundError where that is not there.
        """
        mount = self.runtime.policy().sites[storage.site].mount
        home = Path(mount)
        if not home.is_dir():
            raise NotFoundError(
                f"the storage of {storage.site}, {mount}, is not there where its mover runs: mount it there"
            )
        there = Path(storage.path)
        existing = next(at for at in (there, *there.parents) if at.exists())
        if not existing.resolve().is_relative_to(home.resolve()):
            raise RefusedError(f"{storage.path} leads out of {mount}: take the link away, nothing is written there")
        return there if existing == there else None

    @implements(site_api.FIND_DATASET)
    async def find_dataset(self, arg: site_api.FindDataset) -> FoundDataset:
        """Every file that its manifest lists is there, and our receipt or a person says that they are the right ones.
        Their bytes are read when they are copied."""
        root = self._root(arg.storage)
        return await asyncio.to_thread(_dataset, root, arg) if root is not None else FoundDataset(there=False)

    @implements(site_api.CHECK_SITE)
    async def check_site(self, arg: SiteAsk) -> SiteSeen:
        """Looks, and writes one small file where a copy would be made, which it takes away again."""
        try:
            self._root(arg.storage)
        except PermanentError as error:
            return SiteSeen(checks=(*_unknown(str(error)), _owner(arg)))
        policy = self.runtime.policy().copies
        rules = Rules(bandwidth=policy.bandwidth, headroom=policy.headroom, files_at_once=policy.files_at_once)
        if arg.order is None:
            return SiteSeen(checks=(*await self._without_copy(arg), _owner(arg)))
        new = [at for at in (Path(arg.storage.path), *Path(arg.storage.path).parents) if not at.exists()]
        order = arg.order.model_copy(update={"owner": ""})  # its own check
        try:
            survey = await Copying(Ground(order, rules, Rclone()), Meters(lambda _: None)).survey()
        except PermanentError as error:
            return SiteSeen(checks=(*_unknown(str(error)), _owner(arg)))
        finally:
            _tidy(Path(arg.storage.path), own_folder(order.op), new)
        others = [text for text in survey.problems if text != survey.room]
        answers = f"both ends answer; {size_text(survey.to_copy)} of {size_text(survey.size)} are to be copied"
        storage = failed(CheckName.STORAGE, "; ".join(others)) if others else passed(CheckName.STORAGE, answers)
        room = failed if survey.fits is False else passed
        return SiteSeen(checks=(storage, room(CheckName.SPACE, survey.room), _owner(arg)), to_copy=survey.to_copy)

    async def _without_copy(self, arg: SiteAsk) -> tuple[Check, Check]:
        """There is nothing to survey: the storage is asked whether it answers and takes files."""
        place = parse_place(arg.storage.path)
        try:
            space = await open_store(place, Rclone()).space()
        except PermanentError as error:
            return _unknown(str(error))
        told = f"{size_text(space.free)} free by {space.source}" if space.free is not None else space.source
        room = Check(name=CheckName.SPACE, ok=True, why=f"{told}; {arg.because}")
        if arg.blocked:
            return failed(CheckName.STORAGE, arg.because, "see `runbook checkpoints`"), room
        at = next(p for p in (Path(place.path), *Path(place.path).parents) if p.exists())
        if not os.access(at, os.W_OK | os.X_OK, effective_ids=True):
            return failed(CheckName.STORAGE, f"{_me()} may not write to {at}", "correct the rights there"), room
        return passed(CheckName.STORAGE, f"it answers and takes files; {arg.because}"), room


def _dataset(root: Path, arg: site_api.FindDataset) -> FoundDataset:
    sums, name = root / arg.sums, arg.sums.rpartition("/")[0]
    if sums.is_symlink() or not sums.is_file():
        return FoundDataset(there=False, why=f"{sums} is not there")
    listed = parse_sums(sums.read_text(encoding="utf-8", errors="replace"), name)
    size = 0
    for path in listed:
        try:
            seen = (root / path).lstat()
        except OSError:
            return FoundDataset(there=False, why=f"{shown(path)} is not there")
        if not stat.S_ISREG(seen.st_mode):
            return FoundDataset(there=False, why=f"{shown(path)} is no plain file")
        size += seen.st_size
    if not arg.told and not (root / receipt_path(name)).is_file():
        return FoundDataset(
            there=False, why=f"{sums.parent} is there, and neither a receipt nor the job vouches for it"
        )
    return FoundDataset(there=True, size=size, files=len(listed))


def _told(site: str, found: Judgement, files: frozenset[str]) -> FoundCheckpoints:
    newest = found.newest_complete
    complete = [c for c in found.candidates if c.complete and c.entry.step is not None]
    steps = tuple(c.entry.step for c in complete if c.entry.step is not None)
    refused: list[str] = []
    for candidate in found.candidates:
        if candidate.complete or len(refused) == REFUSED:
            break
        refused.append(f"{candidate.entry.name}: {candidate.reason}"[:300])
    return FoundCheckpoints(
        site=site,
        there=True,
        newest=_newest(newest, found, files) if newest else None,
        complete=steps[:STEPS],
        ours=tuple(
            c.entry.step for c in complete if c.entry.step is not None and receipt_path(c.entry.name) in files
        )[:STEPS],
        refused=tuple(refused),
        question=found.question,
        steps_lost=found.steps_lost,
        at=time.time(),
    )


def _newest(newest: Candidate, found: Judgement, files: frozenset[str]) -> FoundCheckpoint:
    entry = newest.entry
    parts, fixed = None, "" if found.movable else "it is node-local and never a source for another cluster"
    if not fixed:
        try:
            parts = parts_of(entry, files)
        except RefusedError as error:
            fixed = str(error)
    return FoundCheckpoint(
        entry=entry.name,
        step=entry.step,
        size=entry.size,
        files=len(entry.data) + len(entry.markers),
        reason=newest.reason,
        parts=parts,
        fixed=fixed,
        ours=receipt_path(entry.name) in files,
    )


def _owner(arg: SiteAsk) -> Check:
    """Whether copied files would belong to the new attempt's user."""
    if not arg.owner:
        if os.geteuid() == 0:
            return passed(CheckName.OWNER, f"the new attempt names no user; the files stay {_me()}'s")
        do = "let the template name its user (runAsUser), and run the mover as root or as that user"
        return failed(CheckName.OWNER, f"the new attempt names no user, and the files would stay {_me()}'s", do)
    if parse_place(arg.storage.path).remote:
        return passed(CheckName.OWNER, "the account of rclone's configuration owns what is copied")
    why = cannot_give(arg.owner)
    if why:
        return failed(CheckName.OWNER, why, f"run the mover of {arg.storage.site} as root or as {arg.owner}")
    return passed(CheckName.OWNER, f"what is copied is given to {arg.owner}")


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _unknown(why: str) -> tuple[Check, Check]:
    return failed(CheckName.STORAGE, why), failed(CheckName.SPACE, "not known while the storage does not answer")


def _tidy(root: Path, own: str, new: Sequence[Path]) -> None:
    """Takes empty folders away that the look made: a root that the job is to make itself must not be ours."""
    for folder in (root / own, root / FOLDER, *new):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _stopping() -> Iterator[Alive]:
    """A check that ends a look in another thread once its step was cancelled."""
    ended = threading.Event()

    def alive() -> None:
        if ended.is_set():
            raise RefusedError("the look was cancelled")

    try:
        yield alive
    finally:
        ended.set()

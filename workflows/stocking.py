"""Where a job's newest checkpoint and its dataset are, what bringing them costs, and bringing them.

A job that names neither, or a fleet without sites, asks nothing here.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import site_api
    from activities.site_api import FindDataset, FoundCheckpoints, copy_order
    from fleet.copying.manifest import Parts
    from fleet.model import Room, Value
    from fleet.orders import JobSpec
    from fleet.placement import Offer
    from fleet.preflight import run_as
    from fleet.sites import Storage, each_site
    from fleet.stock import Held, Weighed, dataset_of, held_dataset, spec_at, weigh
    from workflows.base import StepFailed
    from workflows.carrying import Carrying
    from workflows.choosing import Choosing

LOOK_LIMIT = timedelta(minutes=3)
"""Budget of one look at a site: a mover that is away holds up no placement for longer."""


class Thing(Value):
    """A checkpoint or a dataset of the job, as it is known of all sites."""

    name: str
    storages: Mapping[str, Storage] = {}
    """Cluster -> its root there."""
    parts: Parts | None = None
    """How a copy names it; None where it is nowhere or cannot be copied."""
    fixed: str = ""
    """Why it cannot be copied."""
    weighed: Weighed = Weighed()


class Stocking(Choosing, Carrying):
    """A job whose state may have to come along."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint = Thing(name="checkpoint")
        self.dataset = Thing(name="dataset")

    async def look_for_stock(self, streams: int) -> None:
        """As `Choosing.look_for_stock`: asks the sites of the clusters that the job may go to."""
        clusters = tuple(c for c, kind in sorted(self.kinds.items()) if not self.wish.stays_away(c, kind))
        if streams and self.wish.checkpoint:
            self.checkpoint = await self.find_checkpoint(
                self.wish.checkpoint, self.wish.total_steps, clusters, streams, own=self.wish.roots
            )
            self.facts["Checkpoint"] = self.checkpoint.weighed.text or "none yet"
        if streams and self.wish.dataset:
            self.dataset = await self._dataset(clusters, streams)
            self.facts["Dataset"] = self.dataset.weighed.text or "nowhere"

    def spec(self) -> JobSpec:
        """As `Choosing.spec`, with the checkpoint root that the cluster's storage has."""
        return spec_at(self.wish, self.cluster, self.kinds[self.cluster], self.checkpoint.storages.get(self.cluster))

    def offered(self, cluster: str, room: Room | None, *, unreadable: str, tried: str) -> Offer:
        """As `Choosing.offered`, with what the cluster has of the job's state."""
        return self.wish.offer(
            cluster,
            self.kinds[cluster],
            room,
            unreadable=unreadable,
            tried=tried,
            lacks=(
                *self.checkpoint.weighed.lacks.get(cluster, ()),
                *self.dataset.weighed.lacks.get(cluster, ()),
            ),
            checkpoint=self.checkpoint.weighed.stocks.get(cluster),
            dataset=self.dataset.weighed.stocks.get(cluster),
        )

    # -- what there is

    async def find_checkpoint(
        self,
        path: str,
        total_steps: int | None,
        clusters: tuple[str, ...],
        streams: int,
        homes: tuple[str, ...] = (),
        own: Mapping[str, str] = {},
    ) -> Thing:
        """The job's newest one; `path` is its root on `homes`, else on the first cluster whose storage has it; on
        those of `own` the job names another."""
        asked = tuple(dict.fromkeys((*clusters, *homes)))
        storages = await self._located(site_api.LocateAsk(path=path, clusters=asked, first=homes, own=own))
        found = await asyncio.gather(*(self._checkpoints_at(at, total_steps) for at in each_site(storages)))
        held = {site: self.counted(one) for site, one in found}
        weighed = weigh("checkpoint", clusters, storages, held, streams)
        newest = next(
            (one.newest for site, one in found if site == weighed.source and not isinstance(one, str)), None
        )
        return Thing(
            name="checkpoint",
            storages=storages,
            parts=newest.parts if newest else None,
            fixed=newest.fixed if newest else "",
            weighed=weighed,
        )

    @staticmethod
    def counted(found: FoundCheckpoints | str) -> Held:
        """What a site's answer counts for."""
        return site_api.held(found)

    async def _checkpoints_at(self, storage: Storage, total_steps: int | None) -> tuple[str, FoundCheckpoints | str]:
        """What a site holds; a text where it cannot be told."""
        try:
            return storage.site, await self.find_checkpoints(storage, total_steps, LOOK_LIMIT)
        except StepFailed as failed:
            return storage.site, str(failed)

    async def _dataset(self, clusters: tuple[str, ...], streams: int) -> Thing:
        folder, parts = dataset_of(self.wish.dataset)
        told = self.wish.dataset_on or ()
        storages = await self._located(site_api.LocateAsk(path=folder, clusters=clusters, first=told, whole=True))
        vouched = {storages[cluster].site for cluster in told if cluster in storages}
        found = await asyncio.gather(
            *(self._dataset_at(storage, parts, storage.site in vouched) for storage in each_site(storages))
        )
        weighed = weigh("dataset", clusters, storages, dict(found), streams, needed=True)
        return Thing(name="dataset", storages=storages, parts=parts, weighed=weighed)

    async def _dataset_at(self, storage: Storage, parts: Parts, told: bool) -> tuple[str, Held]:
        try:
            found = await self.act(
                site_api.FIND_DATASET,
                FindDataset(storage=storage, sums=parts.sums or "", told=told),
                site=storage.site,
                budget=LOOK_LIMIT,
                summary=f"dataset in {storage.path}",
            )
        except StepFailed as failed:
            return storage.site, Held(there=False, unknown=str(failed))
        return storage.site, held_dataset(
            found.there, parts.name if found.there else found.why, found.size, found.files
        )

    async def _located(self, ask: site_api.LocateAsk) -> Mapping[str, Storage]:
        return (await self.must(site_api.LOCATE, ask, summary=f"where {ask.path} lies")).storages

    # -- bringing it

    async def bring(self) -> bool:
        """The job's state is at the chosen cluster, proven; False: it cannot be brought there."""
        for thing in (self.dataset, self.checkpoint):
            stock = thing.weighed.stocks.get(self.cluster)
            if stock is None or stock.there:
                continue
            why = thing.fixed or await self._carried(thing)
            if why:
                return self.go_on(f"its {thing.name} was not brought there: {why}")
            self.tell(f"its {thing.name} is at {thing.storages[self.cluster].site}: {thing.weighed.text}")
        return True

    def _owner(self) -> str:
        """To whom the files must belong there."""
        return run_as(self.spec(), self.kinds[self.cluster], "", "").owner

    async def _carried(self, thing: Thing) -> str:
        """Why it is not there; empty when it is."""
        target = thing.storages[self.cluster]
        source = next(at for at in thing.storages.values() if at.site == thing.weighed.source)
        if thing.parts is None:
            return f"nothing is known of the {thing.name} that a copy could name"
        self.at("bring", waits=f"{thing.weighed.text} to {target.site}", then="submit")
        order = copy_order(self.cluster, source, target, thing.parts, owner=self._owner())
        why = await self.carry(order, target.site, thing.weighed.text.partition(" at ")[0])
        if why or thing.name != "checkpoint":
            return why
        try:
            return await self.not_offered(target, thing.parts.step, self.wish.total_steps)
        except StepFailed as failed:
            return str(failed)

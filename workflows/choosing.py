"""What `PlaceJob` and `FailoverAcrossClusters` do alike: ask the clusters for their room, choose one, try it."""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api, place_api
    from fleet.model import Room
    from fleet.orders import JobSpec
    from fleet.placement import Offer, Placement
    from fleet.placing import PlaceWish
    from workflows.base import Book, StepFailed


class Choosing(Book):
    """A job that needs a cluster."""

    wish: PlaceWish

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, str] = {}
        self.tried: dict[str, str] = {}
        """Cluster -> why it is not to be asked, until a person says retry."""
        self.spent: dict[str, str] = {}
        """Cluster -> why it can never be asked again: the key of its ended job is used up."""
        self.placement: Placement | None = None
        self.cluster = ""
        """The one that is tried now."""

    def spec(self) -> JobSpec:
        """The job as it is submitted to the present cluster."""
        return self.wish.spec(self.cluster, self.kinds[self.cluster])

    async def choose(self) -> Placement:
        """Asks every cluster that may come into question, side by side, and puts them in order."""
        self.at("choose", waits="what every cluster says of its room", then="preflight")
        told = await self.must(place_api.LIST_CLUSTERS, api.Nothing(), summary="which clusters there are")
        self.kinds = dict(told.kinds)
        await self.look_for_stock(told.streams)
        offers = await asyncio.gather(*(self.offer(cluster) for cluster in sorted(self.kinds)))
        placement = await self.must(
            place_api.PLACE,
            place_api.PlaceAsk(request=self.wish.request, offers=tuple(offers)),
            summary="choose the cluster",
        )
        self.placement = placement
        self.facts["Choice"] = placement.why
        for candidate in placement.candidates:
            self.facts[candidate.cluster] = candidate.why
        self.tell(f"choice: {placement.why}")
        return placement

    async def offer(self, cluster: str) -> Offer:
        """A cluster that cannot be asked is no candidate, and is no reason to wait."""
        kind = self.kinds[cluster]
        tried = self.spent.get(cluster) or self.tried.get(cluster, "")
        room: Room | None = None
        unreadable = ""
        if not tried and not self.wish.stays_away(cluster, kind):
            try:
                room = await self.act(
                    place_api.READ_ROOM, api.PolicyIn(cluster=cluster), cluster=cluster, summary=f"room of {cluster}"
                )
            except StepFailed as failed:
                unreadable = str(failed)
        return self.offered(cluster, room, unreadable=unreadable, tried=tried)

    async def look_for_stock(self, streams: int) -> None:
        """What is known of the job's state is asked for anew; `streams` files of a copy go at once, 0 means that
        nothing is known of any storage. Here nobody asks."""

    def offered(self, cluster: str, room: Room | None, *, unreadable: str, tried: str) -> Offer:
        """The cluster as a place for the job."""
        return self.wish.offer(cluster, self.kinds[cluster], room, unreadable=unreadable, tried=tried)

    def go_on(self, why: str) -> bool:
        """Notes why the present cluster is not asked again; always False."""
        self.tried[self.cluster] = why[:500]
        self.tell(f"{self.cluster}: {why}")
        return False

"""What every site holds of a job's checkpoint and dataset, for a dry run; weighed by the runbook's own code."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from temporalio.client import Client

from activities import site_api
from clients.ask_cluster import read
from clients.errors import CliError
from fleet.placing import PlaceWish
from fleet.sites import Storage, each_site
from fleet.stock import Held, Weighed, dataset_of, held_dataset, weigh


class State(NamedTuple):
    """The job's state as the offers say it."""

    checkpoint: Weighed = Weighed()
    dataset: Weighed = Weighed()
    roots: Mapping[str, Storage] = {}
    """Cluster -> its checkpoint root there."""

    def lacks(self, cluster: str) -> tuple[str, ...]:
        """Why a cluster is out because of either."""
        return (*self.checkpoint.lacks.get(cluster, ()), *self.dataset.lacks.get(cluster, ()))


async def seen(client: Client, wish: PlaceWish, clusters: tuple[str, ...], streams: int) -> State:
    """Asks the movers of the clusters' sites; without sites (`streams` 0) nobody is asked."""
    state = State()
    if streams and wish.checkpoint:
        ask = site_api.LocateAsk(path=wish.checkpoint, clusters=clusters, own=wish.roots)
        roots = (await read(client, site_api.LOCATE, ask)).storages
        held = dict(await asyncio.gather(*(_checkpoints(client, wish, at) for at in each_site(roots))))
        state = state._replace(checkpoint=weigh("checkpoint", clusters, roots, held, streams), roots=roots)
    if streams and wish.dataset:
        folder, parts = dataset_of(wish.dataset)
        told = wish.dataset_on or ()
        ask = site_api.LocateAsk(path=folder, clusters=clusters, first=told, whole=True)
        places = (await read(client, site_api.LOCATE, ask)).storages
        vouched = {places[cluster].site for cluster in told if cluster in places}
        looks = (
            _dataset(client, site_api.FindDataset(storage=at, sums=parts.sums or "", told=at.site in vouched))
            for at in each_site(places)
        )
        found = dict(await asyncio.gather(*looks))
        state = state._replace(dataset=weigh("dataset", clusters, places, found, streams, needed=True))
    return state


async def _checkpoints(client: Client, wish: PlaceWish, at: Storage) -> tuple[str, Held]:
    ask = site_api.FindCheckpoints(storage=at, total_steps=wish.total_steps)
    try:
        return at.site, site_api.held(await read(client, site_api.FIND_CHECKPOINTS, ask, site=at.site))
    except CliError as error:
        return at.site, site_api.held(str(error))


async def _dataset(client: Client, ask: site_api.FindDataset) -> tuple[str, Held]:
    try:
        found = await read(client, site_api.FIND_DATASET, ask, site=ask.storage.site)
    except CliError as error:
        return ask.storage.site, Held(there=False, unknown=str(error))
    what = ask.sums.partition("/")[0] if found.there else found.why
    return ask.storage.site, held_dataset(found.there, what, found.size, found.files)

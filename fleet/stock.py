"""What each site holds of a job's checkpoint and dataset, and what moving it would cost: the data side of an offer.

Pure. `PlaceJob` and `runbook submit JOB.yaml --dry-run` ask the sites and weigh the answers here.
"""

from collections.abc import Mapping

from fleet.copying.manifest import Parts
from fleet.copying.space import PER_FILE, size_text
from fleet.errors import InvalidInputError
from fleet.ettr import copy_time
from fleet.model import Name, Value
from fleet.orders import JobSpec
from fleet.placement import Stock
from fleet.placing import PlaceWish
from fleet.sites import Storage
from fleet.transfer import moved_wish


class Held(Value):
    """What one site holds of the thing."""

    there: bool
    """Verified there."""
    rank: int = 0
    """Its training step; of two sites the higher one holds the newest."""
    what: str = ""
    """In words, such as `step 30`."""
    size: int = 0
    """Bytes."""
    files: int = 0
    unknown: str = ""
    """Why it cannot be told; empty when it can."""


class Weighed(Value):
    """The thing as the offers of the clusters say it."""

    stocks: Mapping[Name, Stock] = {}
    """Cluster -> what it has of it, or what bringing it takes."""
    lacks: Mapping[Name, tuple[str, ...]] = {}
    """Cluster -> why it is out because of it."""
    source: str = ""
    """Site to bring it from; empty where it is nowhere."""
    text: str = ""
    """The newest one, in words."""


def weigh(
    thing: str,
    clusters: tuple[str, ...],
    storages: Mapping[str, Storage],
    held: Mapping[str, Held],
    streams: int,
    *,
    needed: bool = False,
) -> Weighed:
    """What each cluster has of a job's `thing`, and what a copy to it takes, `streams` files at a time.

    A site that cannot be asked is never taken for one that holds nothing: while it may hold a newer one, or the only
    one, no cluster takes the job, for it would begin at an older step. `needed`: without it the job goes nowhere.
    """
    unknown = {site: one.unknown for site, one in sorted(held.items()) if one.unknown}
    if unknown:
        why = "; ".join(f"{site}: {text}" for site, text in unknown.items())
        lack = f"it is not known whether a site holds a newer {thing} ({why})"
        return Weighed(lacks=dict.fromkeys(clusters, (lack[:500],)))
    having = sorted(((one.rank, site) for site, one in held.items() if one.there), key=lambda two: (-two[0], two[1]))
    if not having and needed:
        why = (
            "; ".join(f"{site}: {one.what or 'nothing'}" for site, one in sorted(held.items()))
            or "no site has its path"
        )
        return Weighed(lacks=dict.fromkeys(clusters, (f"the {thing} is nowhere ({why})"[:500],)))
    if not having:
        return Weighed()
    rank, source = having[0]
    best = held[source]
    stocks = {}
    for cluster in clusters:
        storage = storages.get(cluster)
        if storage is None:
            stocks[cluster] = Stock(there=False, detail=f"{best.what}; {cluster} has no site")
        elif held[storage.site].there and held[storage.site].rank == rank:
            stocks[cluster] = Stock(there=True, detail=best.what)
        else:
            seconds = copy_time(
                best.size, storage.rate * 8, files=best.files, per_file=PER_FILE, streams=max(1, streams)
            )
            detail = f"{best.what} ({size_text(best.size)}) from {source}"
            stocks[cluster] = Stock(there=False, seconds=seconds, detail=detail)
    return Weighed(stocks=stocks, source=source, text=f"{best.what} at {source}")


def held_checkpoint(step: int | None, size: int, files: int) -> Held:
    """A site's newest complete checkpoint."""
    return Held(there=True, rank=-1 if step is None else step, what=f"step {step}", size=size, files=files)


def held_dataset(there: bool, what: str, size: int, files: int) -> Held:
    """A dataset that its manifest, and a receipt of ours or a person, vouch for; or why it is not there."""
    return Held(there=there, what=what, size=size, files=files)


def dataset_of(sums: str) -> tuple[str, Parts]:
    """The folder that a dataset's folder lies in, and how a copy names it, by the path of its manifest.

    Raises InvalidInputError for a manifest that lies in no folder of its own.
    """
    folder, _, file = sums.rpartition("/")
    root, _, name = folder.rpartition("/")
    if not root:
        raise InvalidInputError(f"{sums}: the dataset needs a folder of its own, such as /data/c4/SHA256SUMS")
    return root, Parts(name=name, sums=f"{name}/{file}")


def spec_at(wish: PlaceWish, cluster: str, kind: str, storage: Storage | None) -> JobSpec:
    """What is submitted there, its checkpoint root being the one that the job names there, else where that cluster's
    storage has the common one."""
    root = storage.path if storage is not None else wish.roots.get(cluster)
    if root is not None and root != wish.checkpoint:
        wish = moved_wish(wish, cluster, wish.epoch, root)
    return wish.spec(cluster, kind)

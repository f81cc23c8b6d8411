"""Where a checkpoint root lies: its site, and how the movers there and elsewhere name it. Pure."""

import posixpath
from collections.abc import Iterable, Mapping

from fleet.copying.places import parse_place
from fleet.errors import InvalidInputError, NotFoundError
from fleet.model import Name, Value
from fleet.policy import Policy


class Storage(Value):
    """One folder of a job's on one site."""

    site: Name
    path: str
    """As the job and the site's own mover name it."""
    remote: str
    """As the movers of other sites name it."""
    rate: float = 125e6
    """Bytes a second that a copy to the site brings, for estimates."""

    def seen_from(self, site: str) -> str:
        """The place for the mover of `site`."""
        return self.path if site == self.site else self.remote


def storage_of(policy: Policy, cluster: str, path: str, *, whole: bool = False) -> Storage:
    """The storage of a folder that a job names on a cluster; `whole`: it may be all of the storage.

    Raises InvalidInputError with what to add to `fleet.yaml`, or to correct in the job; NotFoundError for an unknown
    cluster.
    """
    name = policy.site_of(cluster)
    if name is None:
        raise InvalidInputError(
            f"fleet.yaml names no site for {cluster}: add `site` to it and its storage to `sites`"
        )
    site = policy.sites[name]
    inner = "" if whole and path == site.mount else _below(path, site.mount)
    if inner is None:
        raise InvalidInputError(
            f"{path} is not below {site.mount}, the storage of {cluster}: let the job name a checkpoint root there"
        )
    return _at(policy, name, inner)


def moved(policy: Policy, storage: Storage, cluster: str) -> Storage:
    """The same folder on another cluster's storage: it keeps its path below the mount. Raises as `storage_of`."""
    mount = policy.sites[storage.site].mount
    inner = "" if storage.path == mount else _below(storage.path, mount)
    name = policy.site_of(cluster)
    if name is None or inner is None:
        return storage_of(policy, cluster, storage.path)
    return _at(policy, name, inner)


def located(
    policy: Policy,
    path: str,
    clusters: Iterable[str],
    *,
    first: tuple[str, ...] = (),
    own: Mapping[str, str] = {},
    whole: bool = False,
) -> dict[str, Storage]:
    """A folder that a job names, in each of the clusters that has a site. `path` is one of `first`, else of the first
    cluster whose storage has it, and keeps its place below the mounts of the others; a cluster of `own` has what the
    job names there.

    Raises InvalidInputError where such an own folder is not in the storage of its cluster, or a site would have two.
    """
    sited = [name for name in clusters if policy.site_of(name) is not None]
    found = {name: storage_of(policy, name, own[name]) for name in sited if name in own}
    common = [name for name in sited if name not in own]
    for home in (*first, *common, *policy.clusters):
        try:
            here = storage_of(policy, home, path, whole=whole)
        except (InvalidInputError, NotFoundError):
            continue
        found |= {name: moved(policy, here, name) for name in common}
        break
    _one_a_site(found)
    return found


def destination(
    policy: Policy, cluster: str, path: str, target: str, *, common: str = "", own: Mapping[str, str] = {}
) -> Storage:
    """The checkpoint root in `target` of a job whose root in `cluster` is `path`: the one that it names there, else
    where the target's storage has the one that it names for all, else the same place below the mount.

    Raises as `storage_of` and `located`.
    """
    there = moved(policy, storage_of(policy, cluster, path), target)
    if not own:
        return there
    found = located(policy, common or path, (cluster, target), own={**own, cluster: path})
    if target not in found:
        raise InvalidInputError(
            f"{common} is in no cluster's storage: let the job name a checkpoint root for {target}"
        )
    return found[target]


def _one_a_site(storages: Mapping[str, Storage]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for cluster, storage in storages.items():
        other, path = seen.setdefault(storage.site, (cluster, storage.path))
        if path != storage.path:
            raise InvalidInputError(
                f"{other} and {cluster} share the storage {storage.site}, and the job names {path} and "
                f"{storage.path} there: let it name one checkpoint root for both"
            )


def replica(policy: Policy, storage: Storage, site: str) -> Storage:
    """The same folder on another site. Raises InvalidInputError for a folder that is not below its mount."""
    inner = _below(storage.path, policy.sites[storage.site].mount)
    if inner is None:
        raise InvalidInputError(f"{storage.path} is not below {policy.sites[storage.site].mount}")
    return _at(policy, site, inner)


def each_site(storages: Mapping[str, Storage]) -> tuple[Storage, ...]:
    """One of each site, by the site's name."""
    return tuple(at for _, at in sorted({storage.site: storage for storage in storages.values()}.items()))


def _at(policy: Policy, name: str, inner: str) -> Storage:
    site = policy.sites[name]
    return Storage(
        site=name,
        path=f"{site.mount}/{inner}" if inner else site.mount,
        remote=parse_place(site.from_elsewhere).at(inner),
        rate=site.rate,
    )


def _below(path: str, root: str) -> str | None:
    """The rest of a path under `root`; None where it is not below it, or not in plain words: a root has many jobs."""
    plain = posixpath.normpath(path)
    return plain[len(root) + 1 :] if plain == path.rstrip("/") and plain.startswith(root + "/") else None

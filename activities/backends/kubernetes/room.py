"""What a placement weighs of a Kubernetes cluster: GPU products, topology labels, and ResourceQuotas.

A queue of Kueue is no quota here: what it does not admit waits, and the runbook's own deadline ends the wait.
"""

from collections.abc import Iterable

from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.nodes import is_free
from activities.backends.kubernetes.records import quantity
from activities.backends.kubernetes.view import ClusterView
from fleet.capacity import NodeRoom, grouped, waiting
from fleet.model import Quota, Room


async def read_room(api: KubeApi, view: ClusterView) -> Room:
    """Live. Raises TemporaryError when the apiserver cannot be asked, PermanentError when it may not tell."""
    settings = view.settings
    picture = await view.picture(0)
    quotas: list[Raw] = []
    for space in settings.namespaces or ("",):
        where = f"/api/v1/namespaces/{space}/resourcequotas" if space else "/api/v1/resourcequotas"
        quotas += (await api.list(f"quotas of {view.cluster}", where))[0]
    rooms = (
        NodeRoom(is_free(facts) and facts.gpus > 0, facts.gpus, record.gpu_model, record.domain)
        for facts in view.facts_of(picture)
        if (record := picture.nodes[facts.node])
    )
    return Room(
        cluster=view.cluster,
        groups=grouped(rooms),
        quotas=quotas_of(quotas, settings.gpu_resource),
        waiting=waiting(record.job for record in view.records_of(picture)),
        read_at=picture.at,
    )


def quotas_of(found: Iterable[Raw], resource: str) -> tuple[Quota, ...]:
    """Those that limit GPUs; each binds its namespace. Only `requests.` of an extended resource can be limited. One
    that no controller has counted yet (its status is empty) has all of it left."""
    made = []
    for raw in found:
        meta, status = raw["metadata"], raw.get("status", {})
        key = f"requests.{resource}"
        hard = status.get("hard", {}).get(key) or raw.get("spec", {}).get("hard", {}).get(key)
        if hard is None:
            continue
        left = quantity(hard) - quantity(status.get("used", {}).get(key))
        name = f"ResourceQuota {meta['namespace']}/{meta['name']}"
        made.append(Quota(name=name, scope=meta["namespace"], gpus_left=left))
    return tuple(sorted(made, key=lambda quota: quota.name))

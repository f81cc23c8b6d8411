"""The freeze of the fleet or of one cluster, and what a person takes out of a cluster's waves."""

import secrets

from temporalio.client import Client

from clients import runs, talk
from clients.fleet_file import checked_cluster
from clients.shapes import Started
from fleet.identity import guard_workflow_id
from fleet.model import Value
from fleet.policy import Policy
from fleet.runbooks import FREEZE_MEMO, Freeze, FreezeOrder, GuardInput, Runbook, Update
from fleet.waves import DropOrder, Dropped

FLEET = "fleet"
"""Scope of the guard of all clusters."""


async def scope_of(client: Client, cluster: str | None, policy: Policy | None) -> str:
    """`fleet`, or a known cluster's name."""
    if cluster is None or cluster == FLEET:
        return FLEET
    return await checked_cluster(client, cluster, policy)


async def freeze(client: Client, scope: str, by: str, reason: str) -> tuple[Started, bool]:
    """No new mutation within 5 s. False when somebody had frozen it before: their freeze stays as it is."""
    before = await current(client, scope)
    order = FreezeOrder(by=by, reason=reason)
    held: Freeze = await _tell(client, scope, Update.FREEZE, order, Freeze)
    mine = before is None and held.by == by and held.reason == reason
    text = f"{scope} is frozen" if mine else f"{scope} was frozen already by {held.by}: {held.reason}"
    return Started(id=guard_workflow_id(scope), state="frozen", text=text), mine


async def unfreeze(client: Client, scope: str, by: str, reason: str) -> tuple[Started, bool]:
    """Lets mutations go on. False when it was not frozen."""
    before, fleet = await current(client, scope), await current(client, FLEET) if scope != FLEET else None
    hint = f"; the whole fleet stays frozen by {fleet.by}: {fleet.reason} (`runbook unfreeze`)" if fleet else ""
    if before is None:
        return Started(id=guard_workflow_id(scope), state="unfrozen", text=f"{scope} was not frozen{hint}"), False
    await _tell(client, scope, Update.UNFREEZE, FreezeOrder(by=by, reason=reason), FreezeOrder)
    text = f"{scope} {'is unfrozen' if fleet else 'goes on'} (it was frozen by {before.by}: {before.reason}){hint}"
    return Started(id=guard_workflow_id(scope), state="unfrozen", text=text), True


async def current(client: Client, scope: str) -> Freeze | None:
    """The freeze as every worker reads it, without asking one."""
    found = await runs.find(client, guard_workflow_id(scope))
    if found is None or found.row.status != "running":
        return None
    seen = await found.handle.describe()
    return await seen.memo_value(FREEZE_MEMO, default=None, type_hint=Freeze | None)  # type: ignore[arg-type]


async def drop(client: Client, cluster: str, nodes: tuple[str, ...], by: str, reason: str) -> Dropped:
    """Takes nodes (none named: all) out of the cluster's waves; nothing where its guard does not run or has none."""
    found = await runs.find(client, guard_workflow_id(cluster))
    if found is None or found.row.status != "running":
        return Dropped(nodes=0, isolated=0)
    order = DropOrder(nodes=nodes, by=by, reason=reason)
    return await _tell(client, cluster, Update.DROP, order, Dropped)


async def _tell(client: Client, scope: str, kind: Update, order: Value, gives: type[talk.Answer]) -> talk.Answer:
    return await talk.update_with_start(
        client,
        kind,
        order,
        gives,
        identity=f"{kind}-{secrets.token_hex(8)}",
        runbook=Runbook.GUARD,
        workflow_id=guard_workflow_id(scope),
        start=GuardInput(scope=scope),
        attributes=talk.search_attributes(cluster="" if scope == FLEET else scope),
        summary=f"guard of {scope}",
    )

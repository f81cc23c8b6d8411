"""A launcher's lease: handing out its seats, and taking it back."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities import lease_api
from activities.presence import check_presence
from activities.registry import implements, remember, remembered
from activities.runtime import Owner
from activities.search import typed
from fleet import attributes
from fleet.errors import TemporaryError
from fleet.identity import RUNBOOKS_QUEUE, lease_workflow_id
from fleet.lease import LeaseKey, LeaseLapse, LeaseState, SeatSeen, objections, open_for
from fleet.runbooks import LEASE_STATE, LeaseInput, Revoke, Runbook, Update

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LOOK_EVERY = 2.0
"""Seconds between two looks at a lease that was taken back."""
ANSWER_LIMIT = timedelta(seconds=20)

Handle = WorkflowHandle[object, LeaseState]


class LeaseActivities(Owner):
    """Runs on the queue `runbooks`."""

    @property
    def client(self) -> Client:
        """The worker's own client."""
        return self.runtime.client

    @implements(lease_api.HOLD_LEASE)
    async def hold_lease(self, _arg: lease_api.HoldIn) -> lease_api.Left:
        """Leaves the beating and the end to the launcher."""
        activity.raise_complete_async()

    @implements(lease_api.LAPSE_LEASE)
    async def lapse_lease(self, arg: lease_api.LapseIn) -> LeaseLapse:
        """Takes it back unless it could prove nothing, and waits until every launcher has left or lapsed."""
        old = arg.attempt
        key = LeaseKey(cluster=old.cluster, native_id=old.native_id, restarts=old.restarts)
        before = await self._read(self._handle(key))
        refused = objections(old, before, checks_generation=arg.checks_generation, loss=arg.loss)
        if before is None or refused:
            seats = before.seats if before is not None else ()
            return LeaseLapse(key=key, found=before is not None, refused=refused, seats=seats, seen_at=time.time())
        handle = await self._revoke(key, before, arg.why)
        since = _measured_from(handle.result_run_id or "")
        while True:
            state = await self._read(handle, running=True)
            waited = _boottime() - since
            if state is None or state.revoked_at is None:
                raise TemporaryError(
                    "the lease that was taken back is gone: somebody ended it; it is taken back again"
                )
            left = open_for(state.seats, waited)
            if left <= 0:
                return LeaseLapse(
                    key=key, seats=state.seats, revoked_at=state.revoked_at, waited=waited, seen_at=time.time()
                )
            await asyncio.sleep(min(left, LOOK_EVERY))

    def _handle(self, key: LeaseKey, run: str | None = None) -> Handle:
        return self.client.get_workflow_handle(
            lease_workflow_id(key.cluster, key.native_id, key.restarts), run_id=run, result_type=LeaseState
        )

    async def _read(self, handle: Handle, *, running: bool = False) -> LeaseState | None:
        """The seats with their last renewals; None without a lease, and where it must run, without a running one."""
        try:
            seen = await handle.describe(rpc_timeout=ANSWER_LIMIT)
            if running and seen.status is not WorkflowExecutionStatus.RUNNING:
                return None
            state: LeaseState = await handle.query(LEASE_STATE, result_type=LeaseState, rpc_timeout=ANSWER_LIMIT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise TemporaryError(f"the lease cannot be read: {error.message}") from error
        beats = {
            step.activity_id: step.last_heartbeat_time.ToDatetime().timestamp()
            for step in seen.raw_description.pending_activities
            if step.HasField("last_heartbeat_time")
        }
        return state.model_copy(update={"seats": tuple(_with_beat(seat, beats) for seat in state.seats)})

    async def _revoke(self, key: LeaseKey, before: LeaseState, why: str) -> Handle:
        """After this no renewal succeeds: a lease that has ended is begun anew as one that is taken back."""
        check_presence()
        start: WithStartWorkflowOperation[object, LeaseState] = WithStartWorkflowOperation(
            Runbook.LEASE,
            LeaseInput(key=key, seats=before.seats),
            id=lease_workflow_id(key.cluster, key.native_id, key.restarts),
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"launchers of {key.native_id} on {key.cluster}"[:180],
            search_attributes=typed({attributes.CLUSTER: key.cluster, attributes.STEP: "starting"}),
        )
        try:
            await self.client.execute_update_with_start_workflow(
                Update.REVOKE,
                Revoke(why=why),
                start_workflow_operation=start,
                result_type=LeaseState,
                rpc_timeout=ANSWER_LIMIT,
            )
            handle = await start.workflow_handle()
        except RPCError as error:
            raise TemporaryError(f"the lease could not be taken back: {error.message}") from error
        return self._handle(key, handle.result_run_id)


def _with_beat(seen: SeatSeen, beats: dict[str, float]) -> SeatSeen:
    beat = beats.get(seen.seat.id)
    return seen if beat is None else seen.model_copy(update={"renewed_at": beat})


def _measured_from(run: str) -> float:
    """From when on the wait counts, by `_boottime`: a try before this one on the same boot may have begun it."""
    boot = BOOT_ID.read_text().strip()
    kept = remembered()
    if len(kept) == 3 and kept[:2] == (run, boot):
        return float(kept[2])
    since = _boottime()
    remember(run, boot, since)
    return since


def _boottime() -> float:
    """Nobody sets it, and a suspended machine's time counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

"""A launcher's seat in the lease of its attempt: asked for, renewed and left through Temporal alone."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle, Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.lease_api import Left
from clients import talk
from clients.errors import explained
from fleet.errors import TemporaryError
from fleet.identity import RUNBOOKS_QUEUE, lease_workflow_id
from fleet.lease import LeaseKey, Seat
from fleet.runbooks import REVOKED_MEMO, LeaseInput, Runbook, Signal

ASK_AGAIN = 20.0
"""Seconds until a seat is asked for again: a worker gives it out, and may be busy or away."""
LOOK_AGAIN = 0.5
LOOK_SLOWEST = 5.0
"""Seconds until a seat that was asked for is tried again, each time half as long again: a thousand launchers begin
together, and their looks must not be what their seats wait for."""
CALL_LIMIT = timedelta(seconds=8)


class HeldSeat:
    """One launcher's seat. Renewals need the Temporal server and no worker; the first one needs a worker."""

    def __init__(self, connect: Callable[[], Awaitable[Client]], key: LeaseKey, seat: Seat) -> None:
        """`connect` raises TemporaryError while nobody answers; what it gives is kept."""
        self._connect = connect
        self._client: Client | None = None
        self._key, self._seat = key, seat
        self._id = lease_workflow_id(key.cluster, key.native_id, key.restarts)
        self._asked_at: float | None = None
        self._look = LOOK_AGAIN

    async def renew(self) -> bool:
        """True when the server acknowledged it; False once the lease was taken back. Raises TemporaryError."""
        try:
            if self._client is None:
                self._client = await self._connect()
            return await self._renew(self._client)
        except Exception as error:
            if isinstance(error, TemporaryError):
                raise
            said = explained(error)
            if said is None:
                raise
            raise TemporaryError(str(said)) from error

    async def leave(self, text: str) -> None:
        """Nothing of this launcher runs any more. Raises TemporaryError when nobody answers."""
        if self._client is None:
            return
        try:
            await self._place(self._client).complete(Left(text=text), rpc_timeout=CALL_LIMIT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # that: it never had a seat, or lost it
                raise TemporaryError(error.message) from error

    async def _renew(self, client: Client) -> bool:
        try:
            await self._place(client).heartbeat(rpc_timeout=CALL_LIMIT)
        except AsyncActivityCancelledError as told:
            # A seat that an operator paused or reset is still held.
            return told.details is not None and not told.details.cancel_requested
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        else:
            self._asked_at, self._look = None, LOOK_AGAIN
            return True
        if self._asked_at is None or time.monotonic() - self._asked_at > ASK_AGAIN:
            if await self._is_barred(client):
                return False
            await self._ask(client)
        look, self._look = self._look, min(self._look * 1.5, LOOK_SLOWEST)
        raise TemporaryError(f"no seat in {self._id} yet: a worker for the runbooks gives it out", delay=look)

    async def _ask(self, client: Client) -> None:
        """A signal with start: the first launcher begins the lease."""
        await client.start_workflow(
            Runbook.LEASE,
            LeaseInput(key=self._key),
            id=self._id,
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=Signal.JOIN,
            start_signal_args=[self._seat],
            search_attributes=talk.search_attributes(cluster=self._key.cluster),
            static_summary=f"launchers of {self._key.native_id} on {self._key.cluster}"[:180],
            rpc_timeout=CALL_LIMIT,
        )
        self._asked_at = time.monotonic()

    async def _is_barred(self, client: Client) -> bool:
        try:
            seen = await client.get_workflow_handle(self._id).describe(rpc_timeout=CALL_LIMIT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return REVOKED_MEMO in await seen.memo() and seen.close_time is None

    def _place(self, client: Client) -> AsyncActivityHandle:
        return client.get_async_activity_handle(workflow_id=self._id, run_id=None, activity_id=self._seat.id)

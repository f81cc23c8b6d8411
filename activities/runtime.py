"""What activities share in one worker: the policy as it is now, the backends, the store, the client, the freeze.

Configured once, before the worker starts; tests build one with what they need.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.backends.polling import Shared
from activities.backends.port import ClusterBackend
from activities.registry import FrozenError
from activities.store import AsyncHistoryStore
from fleet.errors import FleetError, InvalidInputError, TemporaryError
from fleet.faults.tables import Tables, load_tables
from fleet.identity import guard_workflow_id
from fleet.policy import Policy
from fleet.policy_file import parse_policy
from fleet.runbooks import FREEZE_MEMO, Freeze
from fleet.strikes import Run, Strike

log = structlog.get_logger()

FREEZE_FRESH = 1.5
"""Seconds that a reading of a guard is used again; with one describe call it keeps a freeze within 5 s everywhere."""


class Runtime:
    """Shared by the activities of one worker."""

    def __init__(
        self,
        *,
        policy_file: Path,
        client: Client,
        make_backend: Callable[[str, Policy, Path], ClusterBackend],
        store: AsyncHistoryStore,
        unsigned_ok: bool,
        ui: str = "",
    ) -> None:
        """`ui` is Temporal's UI (scheme, host, port); empty where nobody knows it."""
        self.policy_file = policy_file
        self.client = client
        self.store = store
        self.unsigned_ok = unsigned_ok
        self.ui = ui
        self._make_backend = make_backend
        self._backends: dict[str, ClusterBackend] = {}
        self._policy: tuple[tuple[int, int], Policy] | None = None
        self._frozen: dict[str, Shared[Freeze | None]] = {}

    # -- policy

    def policy(self) -> Policy:
        """The file as it is now. A broken file stops decisions until it is mended; the old one is not used on."""
        try:
            stat = self.policy_file.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if self._policy is None or self._policy[0] != stamp:
                text = self.policy_file.read_text(encoding="utf-8")
                self._policy = (stamp, parse_policy(text, str(self.policy_file)))
        except (OSError, InvalidInputError) as error:
            raise TemporaryError(f"the policy cannot be read, nothing is decided: {error}", delay=10) from error
        return self._policy[1]

    def tables(self) -> Tables:
        """The catalogue with the fleet's overrides."""
        return load_tables().with_overrides(self.policy().overrides)

    def backend(self, cluster: str) -> ClusterBackend:
        """The cluster's adapter, made once. Raises NotFoundError that lists the known clusters."""
        if cluster not in self._backends:
            policy = self.policy()
            policy.cluster(cluster)
            self._backends[cluster] = self._make_backend(cluster, policy, self.policy_file.parent)
        return self._backends[cluster]

    # -- history

    async def note(self, strikes: Sequence[Strike], runs: Sequence[Run] = ()) -> None:
        """Puts strikes and runs on record. What cannot be counted is no reason to stop what is done: it is logged."""
        try:
            await self.store.add_strikes(strikes, runs)
        except FleetError as error:
            log.warning("strikes were not recorded", error=str(error), strikes=len(strikes), runs=len(runs))

    async def close(self) -> None:
        """Closes the adapters and the store."""
        await asyncio.gather(
            *(b.close() for b in self._backends.values()), *(f.close() for f in self._frozen.values())
        )
        await self.store.close()

    # -- freeze

    async def freeze_of(self, scope: str) -> Freeze | None:
        """The freeze of `guard/<scope>`, read without any worker. Raises TemporaryError when nobody can tell."""
        if scope not in self._frozen:
            self._frozen[scope] = Shared(partial(self._read_freeze, scope))
        return await self._frozen[scope].cached(FREEZE_FRESH)

    async def _read_freeze(self, scope: str) -> Freeze | None:
        try:
            seen = await self.client.get_workflow_handle(guard_workflow_id(scope)).describe()
            return await seen.memo_value(FREEZE_MEMO, default=None, type_hint=Freeze | None)  # type: ignore[arg-type]
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise TemporaryError(f"whether {scope} is frozen cannot be read: {error.message}", delay=2) from error
            return None

    async def check_freeze(self, cluster: str) -> None:
        """Raises FrozenError under a freeze of the fleet or of the cluster."""
        for scope in ("fleet", cluster):
            freeze = await self.freeze_of(scope) if scope else None
            if freeze is not None:
                raise FrozenError(
                    f"{scope} is frozen by {freeze.by}: {freeze.reason}; `runbook unfreeze` lets it go on"
                )


class Owner:
    """Base of the activity classes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def check_freeze(self, cluster: str) -> None:
        """See `Runtime.check_freeze`."""
        await self.runtime.check_freeze(cluster)


async def until(
    look: Callable[[], Awaitable[bool]], *, seconds: float, every: float = 0.5, slowest: float = 3.0
) -> bool:
    """Looks again and again, less often with time, until it is true or `seconds` are over.

    A TemporaryError of a look counts as "not yet": the cluster may be away for a while.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if await look():
                return True
        except TemporaryError:
            pass
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(every, left))
        every = min(every * 1.15, slowest)

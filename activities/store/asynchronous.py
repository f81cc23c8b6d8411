"""The store for async code: the same calls, each in a thread."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from activities.store.history import HistoryStore
from activities.store.values import Ages, Record, SavedReport, SavedSpec, StoreSize
from fleet.faults.evidence import Evidence, Kind, Verdict
from fleet.strikes import Inventory, Run, Sample, Strike


class AsyncHistoryStore:
    """The same calls for async code, each in a thread."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    @classmethod
    async def open(cls, url: str) -> "AsyncHistoryStore":
        """See `HistoryStore`."""
        return cls(await asyncio.to_thread(HistoryStore, url))

    async def save_spec(
        self, *, job: str, cluster: str, native_id: str, script: str | None, spec_text: str, at: float | None = None
    ) -> bool:
        return await asyncio.to_thread(
            self._store.save_spec,
            job=job,
            cluster=cluster,
            native_id=native_id,
            script=script,
            spec_text=spec_text,
            at=at,
        )

    async def add_evidence(self, evidence: Iterable[Evidence]) -> int:
        return await asyncio.to_thread(self._store.add_evidence, tuple(evidence))

    async def add_strikes(self, strikes: Sequence[Strike], runs: Sequence[Run] = ()) -> int:
        """Nothing to add costs no thread and no transaction: the watch calls it at each change."""
        if not strikes and not runs:
            return 0
        return await asyncio.to_thread(self._store.add_strikes, strikes, runs)

    async def save_inventory(self, inventory: Inventory) -> bool:
        return await asyncio.to_thread(self._store.save_inventory, inventory)

    async def save_report(self, subject: str, kind: str, report: str, at: float | None = None) -> bool:
        return await asyncio.to_thread(self._store.save_report, subject, kind, report, at)

    async def save_verdict(self, subject: str, verdict: Verdict, at: float | None = None) -> bool:
        return await asyncio.to_thread(self._store.save_verdict, subject, verdict, at)

    async def save_verdicts(self, verdicts: Mapping[str, Verdict]) -> None:
        await asyncio.to_thread(self._store.save_verdicts, verdicts)

    async def spec_of(self, job: str) -> SavedSpec | None:
        return await asyncio.to_thread(self._store.spec_of, job)

    async def evidence_for(
        self,
        cluster: str,
        node: str | None = None,
        job: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
        kind: Kind | None = None,
    ) -> tuple[Evidence, ...]:
        return await asyncio.to_thread(self._store.evidence_for, cluster, node, job, since, limit, kind)

    async def evidence_of_nodes(
        self, cluster: str, nodes: Sequence[str], since: float
    ) -> Mapping[str, tuple[Evidence, ...]]:
        return await asyncio.to_thread(self._store.evidence_of_nodes, cluster, nodes, since)

    async def reports(self, subject: str | None = None, limit: int = 100) -> tuple[SavedReport, ...]:
        return await asyncio.to_thread(self._store.reports, subject, limit)

    async def last_verdict(self, subject: str) -> Verdict | None:
        return await asyncio.to_thread(self._store.last_verdict, subject)

    async def record(self, since: float, cluster: str | None = None, node: str | None = None) -> Record:
        return await asyncio.to_thread(self._store.record, since, cluster, node)

    async def samples(
        self, since: float, measure: str | None = None, cluster: str | None = None, node: str | None = None
    ) -> tuple[Sample, ...]:
        return await asyncio.to_thread(self._store.samples, since, measure, cluster, node)

    async def size(self) -> StoreSize:
        return await asyncio.to_thread(self._store.size)

    async def forget(self, ages: Ages, still_open: Collection[str]) -> Mapping[str, int]:
        return await asyncio.to_thread(self._store.forget, ages, still_open)

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

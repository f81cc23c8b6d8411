"""An attempt's own output: its last steps, its last words, and the dumps of its ranks.

From the shared file that the job names (`gpu-runbooks.io/log`), which outlives its pods; else from the annotation
`gpu-runbooks.io/progress` of a pod; else from its pods' logs through the apiserver. A log goes with its pod's object,
so what an attempt said is remembered by this process.
"""

import asyncio
from collections.abc import AsyncIterator

from activities.backends.dumps import read_dumps_below
from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.jobview import JobRecord
from activities.backends.kubernetes.records import PodRecord
from activities.backends.kubernetes.view import ClusterView
from activities.backends.port import Dumps
from activities.backends.tail import read_tail_below
from activities.backends.training_log import keep_first, parse_progress
from fleet.errors import FleetError
from fleet.model import Progress

LOG_LIMIT = 4.0
"""Seconds that one log may take: the apiserver asks the kubelet, and a node that hangs answers never."""
WHOLE, TAIL = 16_000, 300
"""Lines that are read the first time, and then: a step's line has about 70 characters."""


class Outputs:
    """`progress`, `log_tail` and `dumps` of one cluster."""

    def __init__(self, api: KubeApi, view: ClusterView) -> None:
        self.api = api
        self.view = view
        self._first: dict[tuple[str, int], Progress] = {}

    async def progress(self, native_id: str, restarts: int) -> Progress:
        record = await self._record(native_id)
        if record is None:
            return Progress()
        key = (record.job.fingerprint, restarts)
        known = self._first.get(key, Progress())
        async for seen in self._said(record, restarts, WHOLE if known == Progress() else TAIL):
            if seen != Progress():
                known = self._first[key] = keep_first(known, seen)
                break
        return known

    async def _said(self, record: JobRecord, restarts: int, lines: int) -> AsyncIterator[Progress]:
        """What each source says, the cheap ones first."""
        yield parse_progress(await self._file(record), restarts, record.job.tokens.epoch or None)
        for pod in record.attempt(restarts):
            yield parse_progress(pod.progress, None)
        for pod in record.speakers(restarts):
            yield parse_progress(await self._log(pod, lines) or "", None)

    async def log_tail(self, native_id: str, lines: int) -> tuple[str, ...]:
        """Of the newest attempt that has said anything, all ranks, rank by rank."""
        record = await self._record(native_id)
        if record is None or lines <= 0:
            return ()
        if text := await self._file(record):
            return tuple(text.splitlines()[-lines:])
        newest = {record.newest.generation} if record.helpers else set()
        for number in sorted(newest | {p.generation for p in record.pods}, reverse=True):
            pods = record.speakers(number)
            texts = await asyncio.gather(*(self._log(pod, lines) for pod in pods))
            found = [(text or "").splitlines() for text in texts]
            if any(found):
                share = max(1, lines // len(found))
                return tuple(line for rank in found for line in rank[-share:])
        return ()

    async def dumps(self, native_id: str, since: float) -> Dumps:
        record = await self._record(native_id)
        folder = record.job.tokens.dumps if record else None
        if not folder:
            return Dumps()
        return await asyncio.to_thread(read_dumps_below, folder, self.view.settings.roots, since)

    async def _record(self, native_id: str) -> JobRecord | None:
        for record in await self.view.jobs(self.view.settings.alive):
            if record.job.native_id == native_id:
                return record
        record = await self.view.job(native_id)
        return record if record.objects else None

    async def _file(self, record: JobRecord) -> str:
        """End of the shared file that the job names, all attempts; empty where it names none that may be read."""
        path, roots = record.job.tokens.log, self.view.settings.roots
        return await asyncio.to_thread(read_tail_below, path, roots) if path and roots else ""

    async def _log(self, pod: PodRecord, lines: int) -> str | None:
        """None when it cannot be had: the node is away, or the pod is gone."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        query = [("container", pod.containers[0]), ("tailLines", str(lines))]
        try:
            return await self.api.text(f"log of {pod.name}", path, query, LOG_LIMIT)
        except FleetError:
            return None

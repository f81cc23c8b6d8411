"""The kernel's lines on their way to evidence: where reading goes on after a restart, which lines are one burst."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agents.edges import Bursts
from agents.kmsg import KernelTail, Record
from agents.spool import Spool
from fleet.faults.evidence import Evidence, FaultClass, Kind
from fleet.faults.kernel_log import KernelLog
from fleet.faults.tables import load_tables
from fleet.faults.xid_text import pci_address, place, signature

BACKLOG = 600.0
"""Seconds of the log that the very first start on a node takes: older faults may have been mended long ago, and what
lasts is seen in NVML's fields."""
LATE = 60.0
"""Seconds after which a line counts as read late: it is then dated by the kernel's clock."""
KNOWN_FOR = 30.0
"""Seconds for which NVML's word on an XID is the same as the kernel's."""
SENT = frozenset({FaultClass.HARDWARE, FaultClass.INFORMATIONAL})
"""Classes of the catalogue's kernel texts that are sent. A file server that is silent for a moment, alone, would be a
`transient` verdict and restart jobs that never noticed; a job that does fail says so itself."""
_MEMO = "kernel"

log = logging.getLogger("runbook-agent")


class KernelNews:
    """Takes records from the tail and gives evidence that was not told yet."""

    def __init__(self, cluster: str, node: str, spool: Spool, boot: str) -> None:
        self.boot = boot
        self.tail: KernelTail | None = None
        memo = spool.remembered(_MEMO) or {}
        same_boot = memo.get("boot") == boot
        self.last: int | None = memo.get("last") if same_boot else None
        self._first_ever = not memo
        tables = load_tables()
        self._texts = tables.kernel_texts
        self._log = KernelLog(cluster=cluster, node=node, tables=tables)
        self._maps: dict[str, str] = memo.get("maps", {}) if same_boot else {}
        self._pending: list[Record] = []
        self._lost = 0
        self._bursts = Bursts()
        self._xids: dict[tuple[str, str | None], float] = {}
        for pci, uuid in self._maps.items():
            self._learn(pci, uuid)

    def take(self) -> bool:
        """Reads what is new; True when there is something to make evidence of."""
        if self.tail is None:
            return False
        records = self.tail.read()
        if self._first_ever and records:
            now = time.clock_gettime(time.CLOCK_MONOTONIC)
            records = [r for r in records if now - r.seconds <= BACKLOG]
        self._pending += records
        if self.tail.lost > self._lost:
            log.warning(
                "%d records of the kernel's log were overwritten before they were read, %d since the start",
                self.tail.lost - self._lost,
                self.tail.lost,
            )
            self._lost = self.tail.lost
        return bool(self._pending)

    def leave(self) -> None:
        """The log is read no more."""
        if not self._pending and self.tail is not None:
            self.last = self.tail.last
        self.tail = None

    def evidence(self, uuids: Mapping[str, str], now: float) -> list[Evidence]:
        """Of all that was taken. `uuids`: PCI address -> uuid as NVML has it."""
        pending, self._pending = self._pending, []
        if not pending:
            return []
        self.last = pending[-1].sequence
        for pci, uuid in uuids.items():
            if self._maps.get(pci) != uuid:
                self._learn(pci, uuid)
        parsed = self._log.read(b"\n".join(record.line for record in pending), seen_at=now)
        return [self._dated(piece, now) for piece in self._news(parsed.evidence)]

    def knows(self, code: int, pci: str | None) -> bool:
        """The kernel's log told this XID a moment ago; `pci` in any spelling."""
        at = self._xids.get((str(code), pci_address(pci or "")))
        return at is not None and time.monotonic() - at <= KNOWN_FOR

    def memo(self) -> dict[str, Any]:
        """What must be known after a restart."""
        if self.tail is not None and not self._pending:
            self.last = self.tail.last
        return {_MEMO: {"boot": self.boot, "last": self.last, "maps": self._maps}}

    def _learn(self, pci: str, uuid: str) -> None:
        """As the driver's own line says it once when it is loaded, so that a line's GPU has its uuid."""
        self._maps[pci] = uuid
        self._log.read(f"NVRM: GPU at PCI:{pci}: {uuid}", seen_at=0.0)

    def _news(self, pieces: tuple[Evidence, ...]) -> Iterator[Evidence]:
        """The first of each burst: the judge counts bursts, and a flood must reach nobody."""
        for piece in pieces:
            if piece.kind is Kind.XID and piece.code:
                self._xids[piece.code, piece.pci] = time.monotonic()
            at = piece.stamp if piece.stamp is not None else time.monotonic()
            name = (piece.kind, piece.pci, place(piece.detail), *signature(piece.code or "", piece.detail))
            if not self._bursts.begins(name, at):
                continue
            row = self._texts.get(piece.code or "") if piece.kind is Kind.KERNEL_TEXT else None
            if row is None or row.fault in SENT:
                yield piece
            else:
                log.info("not sent, for alone it is no fault of the node: %s", piece.text)

    def _dated(self, piece: Evidence, now: float) -> Evidence:
        """A line that was read late, because the agent was away, was seen by the kernel at its own time."""
        if piece.stamp is None:
            return piece
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - piece.stamp
        return piece.model_copy(update={"seen_at": now - age}) if age > LATE else piece

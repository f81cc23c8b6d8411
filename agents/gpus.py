"""NVML's words about the GPUs on their way to evidence: which are there, which are lost, which field is bad."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from agents.edges import Bursts, Edges
from agents.nvml_watch import Gone, Heard, Hung
from agents.nvml_words import GpuRead, Start, Swept, XidEvent
from agents.spool import Spool
from fleet.faults.evidence import Evidence, Kind, Source
from fleet.faults.tables import load_tables
from fleet.faults.texts import clean, digest
from fleet.faults.xid_text import pci_address

LOST_ROUNDS = 2
"""Rounds in a row in which a GPU must be silent, or lists in which it must be missing."""
TIMES = 2
"""Hangs in a row that are no accident."""
GONE_TIMES = 4
"""Starts in a row at which the driver was gone: half a minute, more than a driver takes to be loaded again."""
_MEMO = "gpus"

log = logging.getLogger("runbook-agent")


class Gpus:
    """The node's GPUs in this boot."""

    def __init__(self, cluster: str, node: str, spool: Spool, boot: str, list_again: Callable[[], None]) -> None:
        """`list_again`: makes the driver's list of GPUs anew."""
        self.cluster = cluster
        self.node = node
        self.boot = boot
        self.list_again = list_again
        memo = spool.remembered(_MEMO) or {}
        memo = memo if memo.get("boot") == boot else {}
        self.known: dict[str, str | None] = memo.get("known", {})
        """uuid -> PCI address of every GPU that answered in this boot."""
        self.most_links: dict[str, int] = memo.get("links", {})
        self.lost: list[str] = memo.get("lost", [])
        """Those that were told as lost."""
        self.edges = Edges(load_tables().fields, told=memo.get("told", {}))
        self._bursts = Bursts()
        self._here: set[str] = set()
        """Those that answered since the driver was asked for its list."""
        self._silent: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._saved = self._state()
        self._driver_told = ""

    @property
    def uuids(self) -> dict[str, str]:
        """PCI address -> uuid."""
        return {pci: uuid for uuid, pci in self.known.items() if pci}

    def memo(self) -> dict[str, Any]:
        """What must be known after a restart."""
        self._saved = self._state()
        return {_MEMO: self._saved}

    def changed_memo(self) -> dict[str, Any]:
        """The same, only if it is not what was asked for last."""
        return self.memo() if self._state() != self._saved else {}

    def _state(self) -> dict[str, Any]:
        return {
            "boot": self.boot,
            "known": dict(self.known),
            "links": dict(self.most_links),
            "lost": list(self.lost),
            "told": dict(self.edges.told),
        }

    def heard(self, heard: Heard, tick: float, now: float) -> Iterable[Evidence]:
        """Evidence of one message; `tick` by a clock that only grows, `now` in seconds since the epoch."""
        if isinstance(heard, Start):
            return self._listed(heard, now)
        if isinstance(heard, GpuRead):
            return self._read(heard, tick, now)
        if isinstance(heard, Hung):
            return self._hung(heard, now)
        if isinstance(heard, Gone):
            return self._gone(heard, now)
        if isinstance(heard, Swept):
            self._driver_told = ""
        return ()

    def xid(self, event: XidEvent, tick: float, now: float) -> list[Evidence]:
        """An XID that only NVML told, where it begins a burst."""
        pci = pci_address(event.pci or "")
        if not self._bursts.begins((event.uuid or pci, event.code, event.instance), tick):
            return []
        instance = "" if event.instance is None else f" on MIG instance {event.instance}"
        detail = f"NVML event: XID {event.code}{instance}; its line in the kernel's log was not seen"
        return [self._piece(Kind.XID, str(event.code), detail, now, gpu=event.uuid or pci, pci=pci)]

    # -- the list

    def _listed(self, start: Start, now: float) -> list[Evidence]:
        log.info("driver %s lists %d GPUs", start.driver, len(start.gpus))
        self._here = {gpu.uuid for gpu in start.gpus if gpu.uuid}
        for gpu in start.gpus:
            if gpu.uuid:
                self._learn(gpu.uuid, gpu.pci)
        nameless = [gpu for gpu in start.gpus if not gpu.uuid]
        missing = sorted(uuid for uuid in self.known if uuid not in self._here)
        if len(missing) <= len(nameless):  # they are in the list and do not answer: the rounds tell
            self._missing.clear()
            return []
        told: list[Evidence] = []
        for uuid in missing:
            self._missing[uuid] = self._missing.get(uuid, 0) + 1
            if self._missing[uuid] < LOST_ROUNDS:
                self.list_again()
                continue
            told += self._lose(uuid, f"the driver lists {len(start.gpus)} GPUs; this one answered before", now)
            self._forget(uuid)
        return told

    def _learn(self, uuid: str, pci: str | None) -> None:
        self.known[uuid] = pci_address(pci or "") or self.known.get(uuid)
        self._missing.pop(uuid, None)

    def _forget(self, uuid: str) -> None:
        for memory in (self.known, self.most_links, self._missing, self._silent):
            memory.pop(uuid, None)
        self.edges.forget(uuid)

    # -- one GPU

    def _read(self, read: GpuRead, tick: float, now: float) -> list[Evidence]:
        if read.lost is not None:
            return self._silent_gpu(read, now)
        if read.uuid is None:
            return []
        self._learn(read.uuid, read.pci)
        self._here.add(read.uuid)
        for name in (read.uuid, _index(read)):
            self._silent.pop(name, None)
            if name in self.lost:
                self.lost.remove(name)
                log.info("GPU %s answers again", name)
        for call, words in read.errors.items():
            log.warning("GPU %s: %s failed: %s", read.uuid, call, clean(words))
        fields = dict(read.fields)
        if read.links is not None:
            fields["nvlink_inactive"] = self._links_down(read.uuid, len(read.links))
        return [
            self._piece(
                Kind.GPU_FIELD,
                news.row.field,
                f"NVML {news.row.field} = {news.value:g} on GPU {read.index}: {news.row.title}",
                now,
                gpu=read.uuid,
                pci=self.known[read.uuid],
                value=news.value,
            )
            for news in self.edges.look(read.uuid, fields, tick)
        ]

    def _links_down(self, uuid: str, up: int) -> float:
        """NVLinks that were up in this boot and are not now; a GPU that never had one has none to lose."""
        self.most_links[uuid] = max(up, self.most_links.get(uuid, 0))
        return float(self.most_links[uuid] - up)

    def _silent_gpu(self, read: GpuRead, now: float) -> list[Evidence]:
        uuid = read.uuid or self._only_unheard()
        name = uuid or _index(read)
        self._silent[name] = self._silent.get(name, 0) + 1
        if self._silent[name] < LOST_ROUNDS:
            return []
        return self._lose(name, f"GPU {read.index} does not answer the driver: {clean(read.lost or '')}", now)

    def _only_unheard(self) -> str | None:
        """A GPU that was lost before the list was made has no name there: it is the one that is missed, if one is."""
        missed = [uuid for uuid in self.known if uuid not in self._here]
        return missed[0] if len(missed) == 1 else None

    def _lose(self, name: str, detail: str, now: float) -> list[Evidence]:
        if name in self.lost:
            return []
        self.lost.append(name)
        uuid = name if name in self.known else None
        pci = self.known.get(name)
        return [self._piece(Kind.GPU_LOST, "nvml_lost", detail, now, gpu=uuid, pci=pci)]

    # -- the driver as a whole

    def _hung(self, hung: Hung, now: float) -> list[Evidence]:
        said = f"NVML said nothing for {hung.seconds:g} s after {hung.after}"
        log.error("%s; the process that asks it was ended", said)
        if hung.times < TIMES and not hung.stuck:
            return []
        return self._driver("driver_hung", f"{said}, {hung.times} times in a row", now)

    def _gone(self, gone: Gone, now: float) -> list[Evidence]:
        why = clean(gone.why)
        if gone.times == 1:
            log.warning("the GPUs cannot be asked: %s", why)
        if gone.times < GONE_TIMES or not self.known:
            return []
        return self._driver("driver_gone", f"{len(self.known)} GPUs answered in this boot; now: {why}", now)

    def _driver(self, code: str, detail: str, now: float) -> list[Evidence]:
        if self._driver_told == code:
            return []
        self._driver_told = code
        return [self._piece(Kind.GPU_FIELD, code, detail, now, value=1.0)]

    def _piece(
        self,
        kind: Kind,
        code: str,
        detail: str,
        now: float,
        *,
        gpu: str | None = None,
        pci: str | None = None,
        value: float | None = None,
    ) -> Evidence:
        return Evidence(
            source=Source.NODE_AGENT,
            kind=kind,
            cluster=self.cluster,
            node=self.node,
            gpu=gpu or pci,
            pci=pci,
            code=code,
            seen_at=now,
            detail=detail[:400],
            raw_hash=digest(f"{self.boot}|{code}|{gpu}|{value}|{now:.0f}"),
            value=value,
        )


def _index(read: GpuRead) -> str:
    """Name of a GPU that never told its own."""
    return f"index {read.index}"

"""What the words of an NVLink line say: whose fault it is, this GPU's or that of another device of the link."""

from dataclasses import replace

from fleet.faults.evidence import FaultClass
from fleet.faults.reading import NOBODY, Reading, Tier, blamed
from fleet.faults.tables import LinkBitRow, LinkEventRow, Tables, worst_rung
from fleet.faults.xid_text import LinkRegisters, NvlinkEvent, link_down_reason, nvlink_event


def by_registers(plain: Reading, tables: Tables, registers: LinkRegisters) -> Reading:
    """The reading of an XID 74 with its register words. A bit of the GPU's own side decides before one that tells of
    another device; bits that nobody listed leave the row of XID 74 as it is."""
    found = [(word, bit) for word in range(1, len(registers.words) + 1) for bit in sorted(registers.bits(word))]
    known = [tables.link_bits[place] for place in found if place in tables.link_bits]
    note = f"link {registers.link}: {_told(known, found, tables)}"
    notes = (*plain.notes, note)
    own = [row for row in known if row.effect == "own" and row.fault is FaultClass.HARDWARE]
    peer = [row for row in known if row.effect != "own"]
    unlisted = len(known) < len(found) or not found
    if own:
        return replace(plain, first_rung=worst_rung(*(row.first_rung for row in own)), notes=notes)
    if peer:
        rung = worst_rung(*(row.first_rung for row in peer))
        return replace(plain, culprit=NOBODY, first_rung=rung, confidence=0.6, notes=notes)
    if unlisted:
        return replace(plain, notes=notes)
    return replace(
        plain, tier=Tier.INFORMATIONAL, fault=FaultClass.INFORMATIONAL, first_rung="none", confidence=0.6, notes=notes
    )


def _told(known: list[LinkBitRow], found: list[tuple[int, int]], tables: Tables) -> str:
    said = dict.fromkeys(f"word {row.word} bit {row.bit}: {row.title}" for row in known[:6])
    other = [f"word {word} bit {bit}" for word, bit in found if (word, bit) not in tables.link_bits]
    if other:
        said[f"{', '.join(other[:6])} not in the catalogue"] = None
    return "; ".join(said) or "no bit of its words is set"


LINK_EVENT = "NETIR_LINK_EVT"
"""Unit that tells of a lost link, with the reason."""


def by_debug_words(plain: Reading, tables: Tables) -> Reading:
    """The reading of an XID 144 to 150 with its debug words. Words that nobody listed leave the row of the XID as it
    is: the line's own severity is not trusted."""
    row, note = link_event_row(plain.evidence.detail, tables)
    notes = (*plain.notes, note) if note else plain.notes
    if row is None:
        return replace(plain, notes=notes)
    event = nvlink_event(plain.evidence.detail)
    high = event is not None and event.high and row.high_rung != "none"
    fault = FaultClass.HARDWARE if high else row.fault
    tiers = {FaultClass.HARDWARE: Tier.LINK, FaultClass.TRANSIENT: Tier.TRANSIENT}
    peer = row.effect == "peer"
    return replace(
        plain,
        tier=tiers.get(fault, Tier.INFORMATIONAL),
        fault=fault,
        first_rung=row.high_rung if high else row.first_rung,
        culprit=NOBODY if peer else blamed(plain.evidence, fault),
        confidence=0.6 if peer or fault is not FaultClass.HARDWARE else plain.confidence,
        notes=notes,
    )


def link_event_row(text: str, tables: Tables) -> tuple[LinkEventRow | None, str]:
    """(the row that the words of an NVLink 5 line name, what is said of it); no row for words that nobody listed."""
    event, reason = nvlink_event(text), link_down_reason(text)
    if reason is not None:
        name = f"link-down reason {reason:#04x}"
        rows = _event_rows(LINK_EVENT, tables)
        row = next((r for r in rows if r.read == "reason" and reason in r.numbers), None)
    elif event is not None:
        name = f"{event.unit} {event.status:#x}" if event.status is not None else event.unit
        row = _by_status(event, tables)
    else:
        return None, ""
    return row, f"{name}: {row.title if row else 'not in the catalogue'}"


def _by_status(event: NvlinkEvent, tables: Tables) -> LinkEventRow | None:
    """The worst of the rows that the unit and its error status name."""
    found: list[LinkEventRow] = []
    for row in _event_rows(event.unit, tables):
        bits = any(event.status & bit for bit in row.numbers) if event.status is not None else False
        if (
            row.read == "any"
            or (row.read == "value" and event.status in row.numbers)
            or (row.read == "bits" and bits)
        ):
            found.append(row)
    worst = (FaultClass.HARDWARE, FaultClass.TRANSIENT, FaultClass.INFORMATIONAL)
    return min(found, key=lambda row: worst.index(row.fault) if row.fault in worst else 0, default=None)


def _event_rows(unit: str, tables: Tables) -> list[LinkEventRow]:
    return [row for row in tables.link_events.values() if unit in row.units.split()]

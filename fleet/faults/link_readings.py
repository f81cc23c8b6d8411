"""What the words of an NVLink line say: whose fault it is, this GPU's or that of another device of the link."""

from dataclasses import replace

from fleet.faults.evidence import FaultClass
from fleet.faults.reading import NOBODY, Reading, Tier
from fleet.faults.tables import LinkBitRow, Tables, worst_rung
from fleet.faults.xid_text import LinkRegisters


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

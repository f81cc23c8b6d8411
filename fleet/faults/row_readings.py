"""Readings of the kinds whose verdict is a row of the catalogue: kernel lines, GPU fields, DCGM errors, figures."""

from fleet.faults.evidence import Evidence, FaultClass
from fleet.faults.reading import Reading, Tier, blamed, informational, own_words
from fleet.faults.tables import Row, Rung, Tables

_TIERS = {
    FaultClass.HARDWARE: Tier.OTHER_HARDWARE,
    FaultClass.TRANSIENT: Tier.TRANSIENT,
    FaultClass.USER: Tier.USER,
    FaultClass.UNKNOWN: Tier.UNKNOWN,
    FaultClass.INFORMATIONAL: Tier.INFORMATIONAL,
}
_GONE = "120"
"""DCGM's error for a GPU that has fallen off the bus."""


def kernel_text(e: Evidence, tables: Tables) -> Reading:
    """A line of the kernel about the network, storage, memory or a processor."""
    row = tables.kernel_texts.get(e.code or "")
    what = f"{row.title if row else 'a kernel line'!r} in the kernel's log"
    if row is None:
        return informational(e, "kernel:unlisted", what, f"a text that is not in the catalogue: {e.detail[:120]}")
    tier = Tier.SECONDARY if row.secondary and row.fault is not FaultClass.INFORMATIONAL else _TIERS[row.fault]
    return _by_row(e, row, row.first_rung, f"kernel:{row.id}", what, tier)


def gpu_field(e: Evidence, tables: Tables) -> Reading:
    """A field of a GPU. `recovery_action` means what its value says; a gauge of XIDs is a hint and no more."""
    name = e.code or ""
    what = f"the GPU field {name}"
    value = int(e.value) if e.value is not None else -1
    if name == "recovery_action" and (action := tables.recovery.get(value)) is not None:
        if action.fault is FaultClass.INFORMATIONAL:
            return informational(e, f"recovery:{value}", what, action.title)
        return _by_row(e, action, action.first_rung, f"recovery:{value}", what, Tier.RECOVERY)
    row = tables.fields.get(name)
    if row is None:
        return informational(e, "field:unlisted", what, f"a field that is not in the catalogue: {e.detail[:120]}")
    if e.value is not None and not row.is_bad(e.value):
        return informational(e, f"field:{name}", what, "all is well")
    return _by_row(e, row, row.first_rung, f"field:{name}", what, _TIERS[row.fault])


def dcgm_error(e: Evidence, tables: Tables) -> Reading:
    """An error of DCGM's diagnostic: a failed test, whatever its severity; the severity picks the remedy."""
    row = tables.dcgm.get(e.code or "")
    what = "a failed DCGM test"
    if row is None:
        phrase = f"an error that is not in the catalogue: {e.detail[:160]}"
        return Reading(
            e, Tier.UNREAD, FaultClass.UNKNOWN, "dcgm:unlisted", what, phrase, first_rung="person", confidence=0.4
        )
    tier = Tier.GPU_GONE if row.error == _GONE else _TIERS[row.fault]
    return _by_row(e, row, row.first_rung, f"dcgm:{row.error}", what, tier, more=f": {e.detail[:200]}")


def measured(e: Evidence, tables: Tables) -> Reading:
    """A figure says nothing alone: whether it is good, the fleet's own baseline tells."""
    return informational(e, f"measured:{e.code}", "a measurement", e.detail or "no detail")


def flight_record(e: Evidence, tables: Tables) -> Reading:
    """One rank's view of a collective: a symptom. Who is missing tells only the comparison of all ranks."""
    if e.code == "complete":
        return informational(e, "flight_record:complete", "a Flight Recorder dump", e.detail)
    phrase = f"{e.detail}; only the dumps of all ranks together tell who is missing"
    what = "an open collective in a Flight Recorder dump"
    return Reading(e, Tier.UNKNOWN, FaultClass.UNKNOWN, "flight_record:open", what, phrase, confidence=0.3)


def _by_row(e: Evidence, row: Row, rung: Rung, rule: str, what: str, tier: Tier, more: str = "") -> Reading:
    sure = {FaultClass.HARDWARE: 0.7, FaultClass.UNKNOWN: 0.3, FaultClass.INFORMATIONAL: 0.8}
    return Reading(
        e,
        tier,
        row.fault,
        rule,
        what,
        f"{row.title}{more}",
        first_rung=rung,
        confidence=sure.get(row.fault, 0.6),
        culprit=blamed(e, row.fault),
        minor=1,
        notes=own_words(row),
    )

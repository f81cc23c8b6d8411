"""One piece of evidence, taken alone: what the catalogue says about it, and how strong it is."""

from dataclasses import replace

from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind, Source
from fleet.faults.link_readings import by_debug_words, by_registers
from fleet.faults.reading import Reading, Tier, blamed, informational, own_words
from fleet.faults.row_readings import dcgm_error, flight_record, gpu_field, kernel_text, measured
from fleet.faults.tables import ReasonRow, Rung, Tables, XidRow
from fleet.faults.xid_text import (
    link_registers,
    named_xid,
    needs_reset,
    number,
    nvsentinel_xid,
    recovery_action,
    sxid_severity,
)
from fleet.identity import op_of_reason

_GPU_GONE = {79, 167}
_MEMORY = {48, 64, 95, 140, 171, 172, 175}
_DETAIL_OF_48 = {171, 172}
_LINK = {74, 136, *range(144, 151), 155, 159, 166, 173}
_NEVER_A_ROOT = {43, 45}
_HEALTH_CHECK_WORDS = ("healthcheck", "health check", "nhc:", "[hc]", "hc:", "health_check")
_COULD_NOT_RUN = ("timed out", "timeout", "time out", "could not run", "no result")


def read(e: Evidence, tables: Tables) -> Reading | None:
    """The reading of one piece; None for what we did ourselves (our own mark in a reason)."""
    if e.kind in {Kind.NODE_DRAINED, Kind.NODE_DOWN} and any(op_of_reason(text) for text in (e.code or "", e.detail)):
        return None
    if e.kind is Kind.XID:
        return _xid(e, tables, e.code or "")
    return _READERS[e.kind](e, tables)


def _xid(e: Evidence, tables: Tables, code: str, *, note: str = "") -> Reading:
    row = tables.xid.get(number(code))
    notes = (note,) if note else ()
    if row is None:
        return Reading(
            e,
            Tier.UNREAD,
            FaultClass.UNKNOWN,
            f"xid:{code[:12]}",
            f"XID {code[:12]}",
            "a code that is not in the catalogue",
            first_rung="person",
            confidence=0.4,
            culprit=Culprit(node=e.node, gpu=e.gpu),
            notes=notes,
        )
    notes = (*notes, *own_words(row))
    plain = Reading(
        e,
        _xid_tier(row),
        row.fault,
        f"xid:{row.xid}",
        f"XID {row.xid}",
        row.title,
        first_rung=row.first_rung,
        confidence=_xid_confidence(row),
        culprit=blamed(e, row.fault),
        minor=int(row.xid in _DETAIL_OF_48),
        notes=notes,
    )
    return plain if row.overridden else _decoded(plain, tables, row.xid)


def _xid_tier(row: XidRow) -> Tier:
    if row.xid in _NEVER_A_ROOT and not row.overridden:
        return Tier.SECONDARY
    if row.fault is FaultClass.HARDWARE:
        groups = {Tier.GPU_GONE: _GPU_GONE, Tier.MEMORY: _MEMORY, Tier.LINK: _LINK}
        own = next((tier for tier, codes in groups.items() if row.xid in codes), None)
        if own is not None:
            return own
        return Tier.OTHER_HARDWARE if row.first_rung == "person" else Tier.FIRMWARE
    if row.xid == 94:
        return Tier.CONTAINED
    return {
        FaultClass.TRANSIENT: Tier.TRANSIENT,
        FaultClass.USER: Tier.APP_XID,
        FaultClass.UNKNOWN: Tier.UNREAD,
        FaultClass.INFORMATIONAL: Tier.INFORMATIONAL,
    }[row.fault]


def _xid_confidence(row: XidRow) -> float:
    if row.xid == 79:
        return 0.95
    if row.name and row.title.startswith("a code that is not used"):
        return 0.5
    return {FaultClass.HARDWARE: 0.9, FaultClass.USER: 0.6, FaultClass.TRANSIENT: 0.7}.get(row.fault, 0.6)


def _decoded(plain: Reading, tables: Tables, xid: int) -> Reading:
    """The text beats the number where it says more: reset flags, recovery action, reason of a lost link."""
    detail = plain.evidence.detail
    if xid in {94, 95} and (reset := needs_reset(detail)) is not None:
        return _by_flags(plain, reset=reset)
    if xid == 154 and (action := recovery_action(detail)) is not None:
        return _by_recovery(plain, tables, action)
    if xid == 74 and (registers := link_registers(detail)) is not None:
        return by_registers(plain, tables, registers)
    if 144 <= xid <= 150:
        return by_debug_words(plain, tables)
    return plain


def _by_flags(plain: Reading, *, reset: bool) -> Reading:
    fault = FaultClass.HARDWARE if reset else FaultClass.TRANSIENT
    return replace(
        plain,
        tier=Tier.MEMORY if reset else Tier.CONTAINED,
        fault=fault,
        first_rung="reset" if reset else "none",
        culprit=blamed(plain.evidence, fault),
        notes=(*plain.notes, "its RST flags ask for a reset" if reset else "its RST flags ask for no reset"),
    )


def _by_recovery(plain: Reading, tables: Tables, action: tuple[int, str]) -> Reading:
    value, name = action
    row = tables.recovery.get(value)
    if row is not None and row.fault is FaultClass.INFORMATIONAL:
        return replace(plain, phrase=row.title)
    return replace(
        plain,
        tier=Tier.RECOVERY,
        fault=row.fault if row else FaultClass.HARDWARE,
        rule=f"recovery:{value}",
        phrase=row.title if row else f"the driver asks for an action that is not in the catalogue ({name})",
        first_rung=row.first_rung if row else "person",
        confidence=0.9 if row else 0.5,
        culprit=blamed(plain.evidence, FaultClass.HARDWARE),
        minor=1,
    )


def _sxid(e: Evidence, tables: Tables) -> Reading:
    code = e.code or ""
    row = tables.sxid.get(number(code))
    severity = sxid_severity(e.detail)
    corrected = severity in {"non-fatal", "severity 0"}
    if row is None:
        fault = FaultClass.INFORMATIONAL if corrected else FaultClass.UNKNOWN
        phrase = "an NVSwitch report" if corrected else "an NVSwitch error that is not in the catalogue"
        rung: Rung = "none" if corrected else "person"
    else:
        fault, phrase, rung = row.fault, row.title, row.first_rung
        if fault is FaultClass.INFORMATIONAL and severity == "fatal" and not row.overridden:
            fault, phrase, rung = FaultClass.UNKNOWN, f"{row.title}, but the line calls it fatal", "person"
    tiers = {FaultClass.HARDWARE: Tier.SWITCH, FaultClass.INFORMATIONAL: Tier.INFORMATIONAL}
    return Reading(
        e,
        tiers.get(fault, Tier.UNREAD),
        fault,
        f"sxid:{code[:12]}",
        f"SXid {code[:12]}",
        phrase,
        first_rung=rung,
        confidence=0.8 if row else 0.4,
        culprit=Culprit(node=e.node),
        notes=own_words(row),
    )


def _gpu_lost(e: Evidence, tables: Tables) -> Reading:
    row = tables.xid.get(79)
    return Reading(
        e,
        Tier.GPU_GONE,
        FaultClass.HARDWARE,
        "gpu_lost",
        "a lost GPU",
        "the GPU does not answer any more",
        first_rung=row.first_rung if row else "reboot",
        confidence=0.9,
        culprit=blamed(e, FaultClass.HARDWARE),
        minor=1,
    )


def _node_down(e: Evidence, tables: Tables) -> Reading:
    text = f"{e.code or ''}; {e.detail}"
    if e.source is Source.PERSON:
        return informational(e, "node_down_by_person", "a node taken down by a person", "theirs to give back")
    row = tables.reason("node", text)
    if row is not None and row.fault is not FaultClass.HARDWARE:
        return _by_node_reason(e, row)
    return Reading(
        e,
        Tier.NODE,
        FaultClass.HARDWARE,
        "node_down",
        "a node that is down",
        row.title if row else "the scheduler lost it",
        first_rung=row.first_rung if row else "reboot",
        confidence=0.8,
        culprit=Culprit(node=e.node),
        notes=own_words(row),
    )


def _node_drained(e: Evidence, tables: Tables) -> Reading:
    text = f"{e.code or ''}; {e.detail}"
    person = informational(e, "drained_by_person", "a drain by a person", "theirs to undo; the job is told")
    if e.source is Source.PERSON:
        return person
    if (xid := named_xid(text)) is not None:
        return _xid(e, tables, str(xid), note="named in the reason of a drain, which stays its owner's")
    if (row := tables.reason("node", text)) is not None:
        return _by_node_reason(e, row)
    if e.source is Source.HEALTH_CHECK or any(word in text.lower() for word in _HEALTH_CHECK_WORDS):
        return _check(e, "health_check_drain", "a drain by a health check")
    return person


def _condition(e: Evidence, tables: Tables) -> Reading:
    """`code` is `TYPE=STATUS`. A type that the catalogue does not know, and a status that nobody keeps up, are
    recorded: no action follows from what we cannot read."""
    name, _, status = (e.code or "").partition("=")
    row = tables.conditions.get(name)
    what = f"the node's condition {name}={status}"
    if row is None:
        phrase = f"a type that is not in the catalogue ({e.detail[:120] or 'no detail'})"
        return informational(e, "condition:unmapped", what, phrase)
    if status not in {"True", "False"}:
        phrase = f"its agent says nothing any more ({e.detail[:120] or 'no detail'}); run a check of the node"
        return informational(e, f"condition:{name}:silent", what, phrase)
    if status != row.bad:
        return informational(e, f"condition:{name}:good", what, "all is well")
    if (xid := named_xid(e.detail) or nvsentinel_xid(name, e.detail)) is not None:
        return _xid(e, tables, str(xid), note=f"named by {what}")
    phrase = f"{row.title} ({e.detail[:160] or 'no detail'})"
    if row.fault is not FaultClass.HARDWARE:
        return informational(e, f"condition:{name}", what, f"{phrase}; the jobs on it tell whether it hurts")
    return Reading(
        e,
        Tier.NODE,
        row.fault,
        f"condition:{name}",
        what,
        phrase,
        first_rung=row.first_rung,
        confidence=0.7,
        culprit=Culprit(node=e.node),
        notes=own_words(row),
    )


def _by_node_reason(e: Evidence, row: ReasonRow) -> Reading:
    hardware = row.fault is FaultClass.HARDWARE
    return Reading(
        e,
        Tier.NODE if hardware else Tier.UNREAD,
        row.fault,
        f"reason:{row.reason}",
        f"the node's reason {row.reason!r}",
        row.title,
        first_rung=row.first_rung,
        confidence=0.6,
        culprit=Culprit(node=e.node),
        notes=own_words(row),
    )


def _check(e: Evidence, rule: str, what: str) -> Reading:
    """A failed check is hardware; one that could not run says nothing about the node."""
    text = f"{e.code or ''} {e.detail}"
    said = " ".join(text.split())[:160] or "no text"
    if any(word in text.lower() for word in _COULD_NOT_RUN):
        phrase = f"the check itself did not run ({said}); run it again"
        return Reading(e, Tier.UNKNOWN, FaultClass.UNKNOWN, f"{rule}_not_run", what, phrase, confidence=0.3)
    return Reading(
        e,
        Tier.OTHER_HARDWARE,
        FaultClass.HARDWARE,
        rule,
        what,
        said,
        first_rung="reboot",
        confidence=0.6,
        culprit=Culprit(node=e.node, gpu=e.gpu),
        minor=1,
    )


def _check_failed(e: Evidence, tables: Tables) -> Reading:
    return _check(e, "check_failed", "a failed check")


def _job_end(e: Evidence, tables: Tables) -> Reading:
    """A job's end or requeue, by the scheduler's reason first and the exit code second."""
    code = e.code or ""
    if e.kind is Kind.JOB_REQUEUED and e.source is Source.PERSON:
        return informational(e, "requeued_by_person", "a requeue by a person", "their order")
    reason, exit_row = tables.reason("job", code), tables.exit(code)
    if reason is not None:
        minor = 4 if reason.fault is FaultClass.UNKNOWN else 2  # an exit code says more than "it failed"
        tier = _RECORD_TIERS[reason.fault]
        rule, title, fault, rung = f"reason:{reason.reason}", reason.title, reason.fault, reason.first_rung
    elif exit_row is not None:
        minor, tier = 3, Tier.SECONDARY if exit_row.secondary else _EXIT_TIERS[exit_row.fault]
        rule, title, fault, rung = f"exit:{exit_row.code}", exit_row.title, exit_row.fault, exit_row.first_rung
    else:
        minor, tier = 4, Tier.BARE_EXIT
        rule, title, fault, rung = "exit:unlisted", "an end that is not in the catalogue", FaultClass.UNKNOWN, "none"
    what = f"the job's end {code!r}" if e.kind is Kind.JOB_EXIT else f"the job's requeue {code!r}"
    sure = 0.8 if fault in {FaultClass.TRANSIENT, FaultClass.INFORMATIONAL} else 0.6
    confidence = 0.3 if fault is FaultClass.UNKNOWN else sure
    notes = own_words(reason or exit_row)
    return Reading(e, tier, fault, rule, what, title, rung, confidence, blamed(e, fault), minor, notes)


_RECORD_TIERS = {
    FaultClass.HARDWARE: Tier.NODE,
    FaultClass.TRANSIENT: Tier.TRANSIENT,
    FaultClass.USER: Tier.RECORD,
    FaultClass.UNKNOWN: Tier.BARE_EXIT,
    FaultClass.INFORMATIONAL: Tier.INFORMATIONAL,
}
_EXIT_TIERS = _RECORD_TIERS | {FaultClass.USER: Tier.APP_XID}
_TEXT_TIERS = {
    FaultClass.HARDWARE: Tier.TEXT_HARDWARE,
    FaultClass.TRANSIENT: Tier.TRANSIENT,
    FaultClass.USER: Tier.USER,
    FaultClass.UNKNOWN: Tier.UNKNOWN,
    FaultClass.INFORMATIONAL: Tier.INFORMATIONAL,
}
_OWN_TEXT_TIERS = {
    "slurm_oom": Tier.RECORD,
    "slurm_time_limit": Tier.RECORD,
    "bad_checkpoint": Tier.BAD_RESUME,
    "python_exception": Tier.USER,
}


def _log_text(e: Evidence, tables: Tables) -> Reading:
    row = tables.texts.get(e.code or "")
    if row is None:
        phrase = f"a text that is not in the catalogue: {e.detail[:120]}"
        return Reading(e, Tier.UNKNOWN, FaultClass.UNKNOWN, "text:unlisted", "the job's text", phrase, confidence=0.2)
    tier = Tier.SECONDARY if row.secondary else _OWN_TEXT_TIERS.get(row.id, _TEXT_TIERS[row.fault])
    confidence = {FaultClass.HARDWARE: 0.7, FaultClass.USER: 0.8, FaultClass.UNKNOWN: 0.3}.get(row.fault, 0.6)
    return Reading(
        e,
        tier,
        row.fault,
        f"text:{row.id}",
        f"{row.title!r} in the job's log",
        f"{row.title}: {e.detail[:200]}",
        first_rung=row.first_rung,
        confidence=0.6 if row.id == "python_exception" else confidence,
        culprit=blamed(e, row.fault),
        minor=int(row.id == "python_exception"),
        notes=own_words(row),
    )


def _stalled(e: Evidence, tables: Tables) -> Reading:
    phrase = "no new step for too long, and nothing says why"
    return Reading(e, Tier.UNKNOWN, FaultClass.UNKNOWN, "job_stalled", "a stalled job", phrase, confidence=0.3)


def _bad_resume(e: Evidence, tables: Tables) -> Reading:
    phrase = f"it did not go on from its checkpoint; resume from an older complete one ({e.detail[:160]})"
    culprit = Culprit(job=e.job)
    return Reading(
        e, Tier.BAD_RESUME, FaultClass.UNKNOWN, "bad_resume", "a bad resume", phrase, confidence=0.5, culprit=culprit
    )


def _hang(e: Evidence, tables: Tables) -> Reading:
    """The comparison of all ranks' dumps (`fleet.faults.hangs`). It says more than a stall, and less than a cause."""
    said, _, refused = e.detail.partition(" Refused: ")
    own = e.code in {"mismatch", "crosswise"}
    fault = FaultClass.USER if own else FaultClass.UNKNOWN
    return Reading(
        e,
        Tier.USER if own else Tier.UNKNOWN,
        fault,
        f"hang:{e.code}",
        "the ranks' dumps",
        said.rstrip("."),
        confidence=0.7 if own else 0.6 if e.node else 0.3,
        culprit=blamed(e, fault),
        minor=-1,
        notes=(f"refused: {refused}",) if refused else (),
    )


def _unreadable(e: Evidence, tables: Tables) -> Reading:
    tier = Tier.UNKNOWN if e.source is Source.JOB else Tier.UNREAD
    phrase = f"{e.detail[:200] or 'no detail'}; look at the source itself"
    culprit = Culprit(node=e.node)
    return Reading(
        e, tier, FaultClass.UNKNOWN, "unreadable", "what could not be read", phrase, confidence=0.2, culprit=culprit
    )


_READERS = {
    Kind.SXID: _sxid,
    Kind.GPU_LOST: _gpu_lost,
    Kind.NODE_DOWN: _node_down,
    Kind.NODE_DRAINED: _node_drained,
    Kind.JOB_EXIT: _job_end,
    Kind.JOB_REQUEUED: _job_end,
    Kind.JOB_STALLED: _stalled,
    Kind.BAD_RESUME: _bad_resume,
    Kind.LOG_TEXT: _log_text,
    Kind.CHECK_FAILED: _check_failed,
    Kind.NODE_CONDITION: _condition,
    Kind.KERNEL_TEXT: kernel_text,
    Kind.GPU_FIELD: gpu_field,
    Kind.DCGM_ERROR: dcgm_error,
    Kind.MEASURED: measured,
    Kind.FLIGHT_RECORD: flight_record,
    Kind.HANG: _hang,
    Kind.UNREADABLE: _unreadable,
}

"""Which rank does the job wait for, and why that one? From the dumps of its ranks to a verdict. Pure: the same dumps
always give the same one.

Groups hang in chains: whoever waits in one group cannot come to the meeting of another. So of all meetings that are
not over, those count whose missing ranks wait nowhere themselves (the wavefront of NVIDIA's resiliency extension),
and the rest follow from them. The order of the rules, with their sources, is in docs/hangs.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind, Source, Verdict
from fleet.faults.hangs.meetings import Meeting, Picture, picture
from fleet.faults.hangs.mismatch import Mismatch, mismatches
from fleet.faults.hangs.places import Place, one_node
from fleet.faults.hangs.words import listed
from fleet.faults.sources.flight_recorder import Dump
from fleet.model import Value

MAX_TOLD = 20
"""Meetings, mismatches and suspects in one report: it is read by people."""


class Suspect(Value):
    """A rank that the others wait for, and where it runs as far as known."""

    rank: int
    node: str | None = None
    gpu: str | None = None
    local: int | None = None
    """Which of its node's ranks it is, from 0."""
    assumed: bool = False
    """Its place follows from the usual order of the ranks; nobody said it."""
    why: str


class Wait(Value):
    """A collective or transfer that is not over."""

    what: str
    group: str
    seq: int
    """Collective sequence number; -1 for a transfer."""
    waiting: tuple[int, ...]
    """Ranks that are in it."""
    missing: tuple[int, ...]
    """Ranks whose dump shows that they have not come."""
    silent: tuple[int, ...]
    """Ranks of which there is no dump."""
    since: float | None
    """When the first rank came, seconds since the epoch by its clock."""
    place: str
    """`file:line` that most of the waiting ranks came from."""
    first: bool
    """It follows from no other."""


class HangReport(Value):
    """The verdict, and what it was made from."""

    verdict: Verdict
    suspects: tuple[Suspect, ...] = ()
    waits: tuple[Wait, ...] = ()
    """Those that follow from no other first."""
    mismatches: tuple[Mismatch, ...] = ()
    ranks: int = 0
    """How many the job has, as far as anything tells."""
    dumped: int = 0
    """Of how many there is a dump."""

    def evidence(self, *, cluster: str, job: str, seen_at: float) -> Evidence:
        """The same as one piece of evidence, to be judged beside what nodes and logs say."""
        v = self.verdict
        detail = f"{v.title}. Refused: {'; '.join(v.refused)}" if v.refused else v.title  # read by `readings`
        return Evidence(
            source=Source.JOB,
            kind=Kind.HANG,
            cluster=cluster,
            node=v.culprit.node,
            gpu=v.culprit.gpu,
            job=job,
            code=v.rule.partition(":")[2],
            seen_at=seen_at,
            detail=detail[:1000],
            raw_hash=f"{v.rule}|{listed(s.rank for s in self.suspects)}",
            rank=self.suspects[0].rank if self.suspects else None,
            happened_at=min((w.since for w in self.waits if w.since is not None), default=None),
        )


@dataclass
class _Case:
    """What a rule looks at, and what it says."""

    dumps: Mapping[int, Dump]
    seen: Picture
    mismatches: tuple[Mismatch, ...]
    free: frozenset[int]
    """Ranks with a dump that wait in nothing: what keeps them is in no collective."""
    silent: tuple[int, ...]
    rule: str = ""
    fault: FaultClass = FaultClass.UNKNOWN
    title: str = ""
    confidence: float = 0.3
    suspects: dict[int, str] = field(default_factory=dict)
    """rank -> why."""
    first: tuple[Meeting, ...] = ()
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def says(self, rule: str, title: str, confidence: float, fault: FaultClass = FaultClass.UNKNOWN) -> bool:
        self.rule, self.title, self.confidence, self.fault = f"hang:{rule}", title, confidence, fault
        return True


def diagnose(
    dumps: Mapping[int, Dump],
    *,
    places: Mapping[int, Place] | None = None,
    ranks: int = 0,
    job: str | None = None,
    catalogue: str = "",
) -> HangReport:
    """Judges the dumps, by global rank. `ranks`: how many the job has, where the caller knows it (else its groups
    tell); `places`: where they run; `catalogue`: version of the tables, for the verdict."""
    seen = picture(dumps, ranks)
    waits = {rank for meeting in seen.meetings for rank in meeting.holds}
    case = _Case(
        dumps=dumps,
        seen=seen,
        mismatches=mismatches(seen),
        free=frozenset(dumps) - waits,
        silent=tuple(rank for rank in seen.world if rank not in dumps),
    )
    case.first = _wavefront(case)
    for rule in _RULES:
        if rule(case):
            break
    _note(case)
    return _report(case, places or {}, job, catalogue)


# -- the rules, the first that says something decides


def _no_dumps(case: _Case) -> bool:
    if case.dumps:
        return False
    return case.says("no_dumps", "no rank's dump can be read, so nothing tells which one is missing", 0.1)


def _too_few(case: _Case) -> bool:
    count, world = len(case.dumps), len(case.seen.world)
    if len(case.silent) * 2 <= world:
        return False
    title = f"dumps of only {count} of {world} ranks are there, which is too few to say who is missing"
    return case.says("too_few_dumps", title, 0.2)


def _mismatch(case: _Case) -> bool:
    if not case.mismatches:
        return False
    worst = case.mismatches[0]
    case.suspects = dict.fromkeys(worst.ranks, f"differs from the others in its {worst.kind}")
    return case.says("mismatch", f"the ranks disagree: {worst.text}", 0.8 if worst.ranks else 0.6, FaultClass.USER)


def _missing(case: _Case) -> bool:
    """Their process lives, for it wrote a dump; their program never came to the meeting."""
    found = {rank: m for m in reversed(case.first) for rank in m.missing if rank in case.free}
    if not found:
        return False
    meeting = next(m for m in case.first if set(m.missing) & set(found))
    late = [rank for rank in meeting.missing if rank in found]
    late += sorted(set(found) - set(late))
    case.suspects = {rank: f"has not come to {found[rank].name}, and waits in nothing else" for rank in late}
    waiting = listed(meeting.waiting)
    if len(late) > len(meeting.waiting) and len(meeting.waiting) * 2 < len(meeting.calls) + len(meeting.missing):
        title = f"only {waiting} came to {meeting.name}: it may be one too many of theirs, or the others stand still"
        case.suspects = {}
        return case.says("few_came", title, 0.3)
    one = "has" if len(late) == 1 else "have"
    title = (
        f"{listed(late)} {one} not come to {meeting.name}, where {waiting} wait{_s(meeting.waiting)}{_from(meeting)}"
    )
    _skipped(case, meeting, late)
    return case.says("missing_rank", title, 0.7 if len(late) == 1 else 0.6)


def _silent(case: _Case) -> bool:
    """A process that is gone, or stopped, or on a node that is lost writes nothing."""
    for meeting in case.first:
        if meeting.silent:
            break
    else:
        if case.silent and not case.seen.meetings:
            case.suspects = dict.fromkeys(case.silent, "left no dump")
            title = f"{listed(case.silent)} left no dump, and no other rank waits in a collective"
            return case.says("no_dump", title, 0.4)
        return False
    case.suspects = dict.fromkeys(meeting.silent, f"left no dump, and is expected in {meeting.name}")
    title = (
        f"{listed(meeting.silent)} left no dump, and {listed(meeting.waiting)} wait{_s(meeting.waiting)} in"
        f" {meeting.name}{_from(meeting)}: the process is gone or stands still as a whole"
    )
    return case.says("no_dump", title, 0.6)


def _straggler(case: _Case) -> bool:
    """Everybody came and some came out again: the rest is held inside."""
    for meeting in case.first:
        inside = set(meeting.waiting)
        if meeting.full and meeting.pair is None and len(inside) * 2 < len(meeting.group.ranks or meeting.calls):
            case.suspects = dict.fromkeys(sorted(inside), f"is still in {meeting.name}, which others have left")
            title = f"all ranks came to {meeting.name}, and only {listed(inside)} did not come out of it"
            return case.says("straggler", title, 0.5)
    return False


def _not_started(case: _Case) -> bool:
    """Enqueued and not begun, while others began: something before it holds that GPU's stream. Where no rank ever
    shows a start, starts are not recorded, and nothing follows."""
    for meeting in case.first:
        states = {rank: call.state for rank, call in meeting.calls.items()}
        held = sorted(rank for rank, state in states.items() if state == "scheduled")
        if meeting.full and held and len(held) * 2 < len(states) and "started" in states.values():
            case.suspects = dict.fromkeys(held, f"enqueued {meeting.name} and did not begin it")
            title = f"all ranks came to {meeting.name}, but {listed(held)} did not begin it: other work holds the GPU"
            return case.says("not_started", title, 0.5)
    return False


def _same_place(case: _Case) -> bool:
    meeting = next((m for m in case.first if m.full), None)
    if meeting is None:
        return False
    title = (
        f"all ranks are in {meeting.name}{_from(meeting)} and none stands out: the network or a GPU holds the"
        " transfer itself, and only the missing progress tells that it hangs"
    )
    return case.says("same_place", title, 0.3)


def _crosswise(case: _Case) -> bool:
    if not case.seen.meetings:
        return False
    case.first = case.seen.meetings
    names = [m.name for m in case.first[:4]]
    title = f"ranks wait for each other crosswise: {'; '.join(names)}. They came to their groups in different orders"
    return case.says("crosswise", title, 0.7, FaultClass.USER)


def _nothing_open(case: _Case) -> bool:
    title = (
        f"all {len(case.dumps)} ranks wrote dumps and no collective is open: what they wait for is in none, and only"
        " the missing progress tells that the job hangs"
    )
    return case.says("no_collective", title, 0.2)


_RULES: Sequence[Callable[[_Case], bool]] = (
    _no_dumps,
    _too_few,
    _mismatch,
    _missing,
    _silent,
    _straggler,
    _not_started,
    _same_place,
    _crosswise,
    _nothing_open,
)


# -- what the rules look at


def _wavefront(case: _Case) -> tuple[Meeting, ...]:
    """Meetings that no other explains: a missing rank waits nowhere, one left no dump, or everybody came. The
    earliest first. Who came late to a full meeting because its GPU is held elsewhere is explained by that."""
    first = []
    for meeting in case.seen.meetings:
        if (
            set(meeting.missing) & case.free
            or meeting.silent
            or (meeting.full and not _held_elsewhere(case, meeting))
        ):
            first.append(meeting)
    return tuple(first)


def _held_elsewhere(case: _Case, meeting: Meeting) -> bool:
    """Everybody came, but a rank has not begun it that waits in an earlier call of another group."""
    if not any(call.state == "started" for call in meeting.calls.values()):
        return False
    held = {rank: call.parts[0].record_id for rank, call in meeting.calls.items() if call.state == "scheduled"}
    return any(
        rank in other.calls and other.calls[rank].open and other.calls[rank].parts[0].record_id < at
        for other in case.seen.meetings
        if other is not meeting
        for rank, at in held.items()
    )


def _skipped(case: _Case, meeting: Meeting, late: Sequence[int]) -> None:
    """A rank whose last collective came from another line than everybody else's of that number may have left one
    out; it is the program then."""
    tracks = case.seen.tracks.get(meeting.group, {})
    for rank in late[:MAX_TOLD]:
        track = tracks.get(rank)
        own = track.calls.get(track.reached) if track else None
        if track is None or own is None or not own.place:
            continue
        others = {
            t.calls[track.reached].place for r, t in tracks.items() if r not in late and track.reached in t.calls
        }
        if others and own.place not in others:
            case.notes.append(
                f"number {track.reached} of rank {rank} came from {own.place}, that of the others from"
                f" {', '.join(sorted(others)[:3])}: it may have left a collective out, which is the program's fault"
            )


def _note(case: _Case) -> None:
    """What else is to be known, and which other readings were refused."""
    for meeting in case.seen.meetings:
        if meeting not in case.first:
            waits = sorted({r for r in meeting.missing if r not in case.free})
            why = (
                f"{listed(waits)} wait{_s(waits)} elsewhere" if waits else "its GPU is held by an earlier collective"
            )
            case.refused.append(f"{meeting.name} as the origin: {why}, so it follows")
    first = case.first[0] if case.first else None
    if case.rule in {"hang:missing_rank", "hang:no_dump"} and first is not None:
        count = len(first.calls)
        if count > 1:
            case.refused.append(
                f"a mismatch: the {count} ranks that came enqueued the same operation of the same sizes"
            )
        case.refused.append("network or GPU during the transfer: it cannot begin before all ranks have come")
    if case.rule == "hang:missing_rank" and case.silent:
        case.notes.append(f"{listed(case.silent)} left no dump and may be the cause as well")
    if case.rule == "hang:same_place":
        case.refused.append("a missing rank: all came")
    versions = {dump.version for dump in case.dumps.values()}
    if len(versions) > 1:
        case.notes.append(
            f"the dumps are of different versions ({', '.join(sorted(versions))}): one PyTorch for all?"
        )
    lost = sum(dump.lost for dump in case.dumps.values())
    if lost:
        case.notes.append(f"{lost} records could not be read")


# -- the answer


def _report(case: _Case, places: Mapping[int, Place], job: str | None, catalogue: str) -> HangReport:
    known = {rank: places[rank] for rank in case.suspects if rank in places}
    suspects = tuple(_suspect(rank, why, known.get(rank)) for rank, why in case.suspects.items())
    node = one_node(known, case.suspects) if case.suspects else None
    gpu = suspects[0].gpu if len(suspects) == 1 else None
    users = case.fault is FaultClass.USER
    where = _where(suspects, node)
    notes = [*_assumptions(suspects), *case.notes, *(m.text for m in case.mismatches[1:])]
    waits = [
        _wait(m, first=m in case.first)
        for m in (*case.first, *(m for m in case.seen.meetings if m not in case.first))
    ]
    verdict = Verdict(
        fault=case.fault,
        culprit=Culprit(job=job) if users else Culprit(node=node, gpu=gpu, job=job if node is None else None),
        rule=case.rule,
        title=f"{case.title}{where}"[:600],
        first_rung="none",
        companions=tuple(notes[:MAX_TOLD]),
        refused=tuple(case.refused[:MAX_TOLD]),
        confidence=case.confidence,
        catalogue=catalogue,
        evidence_text=tuple(_line(wait) for wait in waits[:6]),
    )
    return HangReport(
        verdict=verdict,
        suspects=suspects[:MAX_TOLD],
        waits=tuple(waits[:MAX_TOLD]),
        mismatches=case.mismatches[:MAX_TOLD],
        ranks=len(case.seen.world),
        dumped=len(case.dumps),
    )


def _suspect(rank: int, why: str, place: Place | None) -> Suspect:
    if place is None:
        return Suspect(rank=rank, why=why)
    return Suspect(rank=rank, node=place.node, gpu=place.gpu, local=place.local, assumed=place.assumed, why=why)


def _where(suspects: Sequence[Suspect], node: str | None) -> str:
    if not suspects:
        return ""
    if node is None:
        nodes = sorted({s.node for s in suspects if s.node})
        return f" (on {', '.join(nodes[:6])})" if nodes else ""
    gpu = f", GPU {suspects[0].gpu or suspects[0].local}" if len(suspects) == 1 and _has_gpu(suspects[0]) else ""
    return f" (on {node}{gpu})"


def _has_gpu(suspect: Suspect) -> bool:
    return suspect.gpu is not None or suspect.local is not None


def _assumptions(suspects: Iterable[Suspect]) -> list[str]:
    if any(s.assumed for s in suspects):
        return ["where ranks run is taken from the usual order (blocks, in the order of the job's nodes)"]
    return []


def _wait(meeting: Meeting, *, first: bool) -> Wait:
    places = [call.place for _, call in sorted(meeting.calls.items()) if call.open and call.place]
    return Wait(
        what=meeting.name,
        group=meeting.group.name,
        seq=meeting.seq,
        waiting=meeting.waiting,
        missing=tuple(sorted(meeting.missing)),
        silent=meeting.silent,
        since=meeting.since,
        place=max(sorted(set(places)), key=places.count, default=""),
        first=first,
    )


def _line(wait: Wait) -> str:
    """One wait for people."""
    parts = [f"{listed(wait.waiting)} wait{_s(wait.waiting)}"] if wait.waiting else ["nobody waits"]
    parts += [f"{listed(wait.missing)} did not come"] if wait.missing else []
    parts += [f"{listed(wait.silent)} left no dump"] if wait.silent else []
    place = f" at {wait.place}" if wait.place else ""
    return f"{wait.what}{place}: {', '.join(parts)}"


def _from(meeting: Meeting) -> str:
    place = _wait(meeting, first=True).place
    return f" at {place}" if place else ""


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""

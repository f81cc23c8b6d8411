"""Evidence -> verdict: who is at fault, by which rule, and what was refused. Pure: the same evidence, in any order,
with the same tables and clock always gives the same verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.faults.companions import apply_rules
from fleet.faults.evidence import Evidence, FaultClass, Kind, Verdict
from fleet.faults.reading import Reading, Tier, where
from fleet.faults.readings import read
from fleet.faults.repeats import order
from fleet.faults.scene import JOB_SIDE, Scene
from fleet.faults.tables import Tables
from fleet.faults.watermarks import valid

MAX_TOLD = 20
"""Companions, refusals and evidence keys in one verdict at most: it is read by people."""
MAX_SHOWN = 6
"""Pieces of evidence that a verdict carries in words: a question is read at night, and each attempt keeps its own."""

_NOTHING = "no valid evidence: nothing tells what happened; look at the node and the job's log"
_OVER = "circumstances only: nothing is wrong by itself"
_ACTIONS = {
    "none": "check the node",
    "reset": "reset the GPU",
    "reboot": "reboot the node",
    "power_cycle": "power-cycle the node",
    "person": "a person must look",
}


def classify(
    evidence: Sequence[Evidence],
    *,
    history: Sequence[Evidence] = (),
    around: Sequence[Evidence] = (),
    tables: Tables,
    boot: str | Mapping[str, str] | None = None,
    now: float,
) -> Verdict:
    """Judges `evidence`; `history` (past evidence of the same nodes and jobs) only counts repeats, and `around` (what
    was seen lately elsewhere in the fleet, or on the job's nodes) only tells a common cause and who was killed.

    `boot` is the present boot of the node, or node -> boot where several are involved: evidence of another boot is
    void. `now` in seconds since the epoch. Facts (`Kind.FACT`) may stand in any of the three.
    """
    facts = [e for e in (*evidence, *history, *around) if e.kind is Kind.FACT]
    kept, refused = valid([e for e in evidence if e.kind is not Kind.FACT], facts, boot, now)
    readings: list[Reading] = []
    for e in kept:
        reading = read(e, tables)
        if reading is None:
            refused.append(f"our own mark is no evidence: {e.kind}{where(e)}")
        else:
            readings.append(reading)
    past = [e for e in history if e.kind is not Kind.FACT]
    elsewhere = [e for e in around if e.kind is not Kind.FACT]
    scene = Scene(readings, past, tables, now, elsewhere, facts, refused=refused)
    apply_rules(scene)
    if not scene.readings:
        over = bool(evidence) and all(e.kind is Kind.FACT for e in evidence)
        return Verdict(
            fault=FaultClass.INFORMATIONAL if over else FaultClass.UNKNOWN,
            rule="no_evidence",
            title=_OVER if over else _NOTHING,
            first_rung="none",
            refused=_told(scene.refused),
            confidence=0.1,
            catalogue=tables.version,
        )
    return _verdict(_root(scene), scene)


def explain(verdict: Verdict, evidence: Sequence[Evidence]) -> str:
    """One paragraph for a tired person, then the evidence, the decisive pieces first."""
    said = [f"{verdict.title}."]
    said.append(f"Rule {verdict.rule} of catalogue {verdict.catalogue}, confidence {verdict.confidence:.0%}.")
    if verdict.companions:
        said.append(f"Seen with it: {'; '.join(verdict.companions)}.")
    if verdict.refused:
        said.append(f"Refused: {'; '.join(verdict.refused)}.")
    rank = {key: index for index, key in enumerate(verdict.evidence)}
    pieces = sorted(evidence, key=lambda e: (rank.get(e.key, len(rank)), order(e, e.seen_at)))
    lines = Counter(_line(e, used=e.key in rank) for e in pieces)
    return "\n".join([" ".join(said), "", *(f"{line}{_times(count)}" for line, count in lines.items())])


def _root(scene: Scene) -> Reading:
    """The strongest reading; when only after-effects are there, that is what it says."""
    first = scene.readings[0]
    if first.tier is not Tier.SECONDARY:
        return first
    jobs = {r.evidence.job for r in scene.readings if r.evidence.job}
    after = ", ".join(sorted({r.short for r in scene.readings if r.tier is Tier.SECONDARY})[:4])
    phrase = f"only after-effects are seen ({after}); the first cause is not in the evidence"
    if jobs:
        return replace(first, fault=FaultClass.UNKNOWN, rule="secondary_only", phrase=phrase, first_rung="none")
    return replace(
        first,
        fault=FaultClass.INFORMATIONAL,
        rule="secondary_only",
        phrase=f"{phrase}; a GPU is well after it",
        first_rung="none",
    )


def _verdict(root: Reading, scene: Scene) -> Verdict:
    others = scene.readings[1:]
    agreeing = [r for r in others if r.fault is root.fault or r.tier >= Tier.SECONDARY]
    against = [r for r in others if r.fault is not root.fault and r.tier < Tier.SECONDARY]
    companions = [*root.notes, *(r.short for r in agreeing)]
    refused = [*scene.refused, *(f"{r.fault}: {r.short} is refused, {_why(root, r)}" for r in against)]
    texts = {r.evidence.key: r.evidence.text for r in reversed([root, *agreeing, *against])}
    keys = list(reversed(texts))
    return Verdict(
        fault=root.fault,
        culprit=root.culprit,
        rule=root.rule,
        title=_title(root),
        first_rung=root.first_rung,
        companions=_told(companions),
        refused=_told(refused),
        confidence=root.confidence,
        elsewhere=root.elsewhere,
        catalogue=scene.tables.version,
        evidence=tuple(keys[:MAX_TOLD]),
        evidence_text=(
            *(texts[key] for key in keys[:MAX_SHOWN]),
            *((f"and {len(keys) - MAX_SHOWN} more",) if len(keys) > MAX_SHOWN else ()),
        ),
    )


def _why(root: Reading, other: Reading) -> str:
    if root.fault is FaultClass.HARDWARE and other.fault is FaultClass.USER:
        return f"for {root.short} lies in its window and explains it"
    return f"for {root.short} is the stronger evidence"


def _title(root: Reading) -> str:
    e = root.evidence
    job = f" (job {e.job})" if e.job else ""
    subject = f"job {e.job}{where(e)}" if e.job and e.kind in JOB_SIDE else f"{root.short}{job}"
    doing = {
        FaultClass.HARDWARE: _ACTIONS[root.first_rung],
        FaultClass.TRANSIENT: "restart in place",
        FaultClass.USER: "its owner must look, no relocation",
        FaultClass.INFORMATIONAL: "nothing to do",
        FaultClass.UNKNOWN: "a person must look"
        if root.first_rung == "person"
        else "one restart in place, then elsewhere",
    }[root.fault]
    return f"{subject}: {' '.join(root.phrase.split())}; {root.fault}, {doing}"[:500]


def _told(lines: Sequence[str]) -> tuple[str, ...]:
    """Each line once with its count, in order, and how many were left out."""
    counted = [f"{line}{_times(count)}" for line, count in Counter(lines).items()]
    left = len(counted) - MAX_TOLD
    return (*counted[:MAX_TOLD], *((f"and {left} more",) if left > 0 else ()))


def _times(count: int) -> str:
    return f" (x {count})" if count > 1 else ""


def _line(e: Evidence, *, used: bool) -> str:
    code = f" {e.code}" if e.code else ""
    job = f" job {e.job}" if e.job else ""
    repeated = f" ({e.count} lines)" if e.count > 1 else ""
    return (
        f"{'*' if used else '-'} {e.source} {e.kind}{code}{where(e)}{job}: {e.detail[:200] or 'no detail'}{repeated}"
    )

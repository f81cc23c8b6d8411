"""What pieces of evidence mean together: who follows whom, what raises a verdict, what lies outside the window."""

import re
from dataclasses import replace

from fleet.faults.common_causes import common_causes
from fleet.faults.evidence import Culprit, Fact, FaultClass, Kind, Source
from fleet.faults.job_causes import AFTER, BEFORE, job_causes
from fleet.faults.reading import Reading, Tier
from fleet.faults.recurring import recurring
from fleet.faults.repeats import Gpu
from fleet.faults.scene import JOB_SIDE, Scene
from fleet.faults.tables import worst_rung
from fleet.faults.xid_text import named_xid, signature

ONCE = 5.0
"""Seconds within which one code on one GPU is one fault, whoever tells it (field study "two GPUs")."""
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d{1,10})")
_PASSING = {Tier.CONTAINED, Tier.TRANSIENT, Tier.APP_XID}
"""What is over when it has passed, so that it explains only what failed near it."""
_LOST_FOR_GOOD = {
    "row_remap_failed",
    "row_remap_uncorrectable",
    "sram_threshold",
    "memory_unrepairable",
    "page_retired_dbe",
}
"""GPU fields that say that a reset mends nothing (NVIDIA GPU memory error management)."""
_LOST_FOR_GOOD_DCGM = {"80", "118", "132"}
_KNOWN_GOOD = {"xid:13", "xid:31", "xid:108", "xid:137"}


def apply_rules(scene: Scene) -> None:
    """Each rule may raise, lower to an after-effect, or refuse readings; the order of evidence does not matter."""
    for rule in (
        _told_once,
        _window,
        _follow_the_named,
        job_causes,
        recurring,
        _known_good,
        _recovery,
        _contained,
        _double_bit,
        _lost_for_good,
        _dead_peer,
        _alone,
        _power_smoothing,
        common_causes,
    ):
        rule(scene)
    scene.readings.sort(key=lambda r: (r.tier, r.minor, *scene.order(r.evidence)))


def _told_once(scene: Scene) -> None:
    """One fault of one GPU that several sources tell within seconds is one reading, with the fullest text."""
    groups: dict[tuple[object, ...], list[Reading]] = {}
    for r in scene.readings:
        e = r.evidence
        if e.kind in {Kind.XID, Kind.SXID, Kind.GPU_LOST} and e.happened_at is not None:
            name = (e.kind, e.node, scene.gpu(e), e.pci if e.gpu is None else None, e.boot)
            groups.setdefault((*name, *signature(e.code or "", e.detail)), []).append(r)
    again: set[int] = set()
    for told in groups.values():
        told.sort(key=lambda r: scene.order(r.evidence))
        for burst in _bursts_of(told, scene):
            fullest = max(burst, key=lambda r: (len(r.evidence.detail), r.evidence.key))
            again |= {id(r) for r in burst if r is not fullest}
    scene.readings = [r for r in scene.readings if id(r) not in again]


def _bursts_of(told: list[Reading], scene: Scene) -> list[list[Reading]]:
    bursts: list[list[Reading]] = []
    for r in told:
        if bursts and scene.when(r.evidence) - scene.when(bursts[-1][-1].evidence) <= ONCE:
            bursts[-1].append(r)
        else:
            bursts.append([r])
    return bursts


def _window(scene: Scene) -> None:
    """Beside a program's own error, node evidence counts only near it; beside any other end of a job that holds for
    what passes by itself. An unknown time counts as near. The window reaches back over the time that the collectives
    may wait, for a cause stands before its time-out."""
    own = [r for r in scene.readings if r.tier is Tier.USER and r.evidence.kind in JOB_SIDE]
    ends = own or [r for r in scene.readings if r.evidence.kind in JOB_SIDE and r.tier <= Tier.SECONDARY]
    if not ends:
        return
    waits = [int(found[1]) / 1000 for r in scene.readings if (found := _TIMEOUT.search(r.evidence.detail))]
    before = max([BEFORE, *(seconds + 60.0 for seconds in waits)])
    failed = [scene.when(r.evidence) for r in ends]
    first, last = (min(failed), min(failed)) if own else (min(failed), max(failed))
    kept: list[Reading] = []
    for r in scene.readings:
        at = r.evidence.happened_at
        if r.evidence.kind in JOB_SIDE or at is None or first - before <= at <= last + AFTER:
            kept.append(r)
            continue
        if not own and r.tier not in _PASSING:
            kept.append(r)
            continue
        side = f"{first - at:.0f} s before" if at < first else f"{at - last:.0f} s after"
        scene.refused.append(f"{r.fault}: {r.short} lies {side} the job's failure, outside its window")
    scene.readings = kept


def _follow_the_named(scene: Scene) -> None:
    """An XID 45 whose tail names its cause stands for that cause when nothing else tells it."""
    for r in scene.xids(45):
        code = named_xid(r.evidence.detail.partition("45,")[2])
        row = scene.tables.xid.get(code or 0)
        if row is None or row.xid in {43, 45} or scene.xids(row.xid):
            continue
        hardware = row.fault is FaultClass.HARDWARE
        tier = Tier.OTHER_HARDWARE if hardware else r.tier
        culprit = Culprit(node=r.evidence.node, gpu=r.evidence.gpu)
        note = f"XID {row.xid} is named by an XID 45; its own line is missing"
        changed = replace(
            r,
            tier=tier,
            fault=row.fault if hardware else r.fault,
            rule=f"xid:{row.xid}" if hardware else r.rule,
            what=f"XID {row.xid} (named by XID 45)",
            phrase=row.title,
            first_rung=row.first_rung if hardware else r.first_rung,
            culprit=culprit if hardware else r.culprit,
            confidence=0.6,
            notes=(*r.notes, note),
        )
        scene.readings[scene.readings.index(r)] = changed


def _known_good(scene: Scene) -> None:
    """An XID that is the program's, of a program that is known to be good (a health check, or one that ran well on
    other GPUs): then it is the GPU's."""
    for r in scene.by_rule(*_KNOWN_GOOD):
        e = r.evidence
        job = e.job or _only_job(scene)
        good = job is not None and any(True for _ in scene.facts_of(Fact.KNOWN_GOOD, job=job))
        if e.source is Source.HEALTH_CHECK or good:
            scene.refused.append(f"{r.fault}: {r.short} came with a program that is known to be good")
            scene.change(
                r,
                tier=Tier.OTHER_HARDWARE,
                fault=FaultClass.HARDWARE,
                rule=f"known_good:{e.code}",
                phrase=f"{r.phrase}; the program is known to be good, so the GPU is suspect",
                first_rung="reset",
                confidence=0.6,
                culprit=Culprit(node=e.node, gpu=e.gpu),
            )


def _only_job(scene: Scene) -> str | None:
    jobs = {r.evidence.job for r in scene.readings if r.evidence.job}
    return next(iter(jobs)) if len(jobs) == 1 else None


def _recovery(scene: Scene) -> None:
    """The newest XID 154 of a GPU raises what else is seen on it to the action it asks for; it never lowers."""
    lines = [r for r in scene.readings if r.rule.startswith("recovery:") or r.rule == "xid:154"]
    lines.sort(key=lambda r: scene.order(r.evidence))
    newest = {(r.evidence.node, scene.gpu(r.evidence)): r for r in lines}
    for r in lines:
        if r is not newest[r.evidence.node, scene.gpu(r.evidence)]:
            past = replace(r, tier=Tier.INFORMATIONAL, fault=FaultClass.INFORMATIONAL, first_rung="none")
            scene.readings[scene.readings.index(r)] = past
    for wish in newest.values():
        if wish.tier is not Tier.RECOVERY:
            continue
        for index, r in enumerate(scene.readings):
            if r.evidence.kind is Kind.XID and r is not wish and _raisable(scene, r, wish):
                scene.readings[index] = _raised(r, wish)


def _raisable(scene: Scene, r: Reading, wish: Reading) -> bool:
    return (
        r.tier < Tier.SECONDARY and not r.rule.startswith("recovery:") and scene.same_gpu(r.evidence, wish.evidence)
    )


def _raised(r: Reading, wish: Reading) -> Reading:
    hardware = r.fault is FaultClass.HARDWARE
    return replace(
        r,
        tier=min(r.tier, Tier.RECOVERY),
        fault=FaultClass.HARDWARE,
        rule=r.rule if hardware else wish.rule,
        first_rung=worst_rung(r.first_rung, wish.first_rung),
        confidence=max(r.confidence, wish.confidence),
        culprit=wish.culprit,
        notes=(*r.notes, f"raised by XID 154: {wish.phrase}"),
    )


def _contained(scene: Scene) -> None:
    """A contained error (94) explains CUDA's ECC text of the same job; 63 beside it changes nothing."""
    contained = [r for r in scene.readings if r.tier is Tier.CONTAINED]
    for r in [r for r in scene.readings if r.rule == "text:cuda_ecc"] if contained else []:
        follower = replace(r, tier=Tier.SECONDARY, fault=FaultClass.UNKNOWN, notes=("follows XID 94",))
        scene.readings[scene.readings.index(r)] = follower


def _double_bit(scene: Scene) -> None:
    """48 with 63 or 64 on the same GPU: drain first, then reset."""
    for r in scene.xids(48):
        beside = [o for o in scene.xids(63, 64) if scene.same_gpu(o.evidence, r.evidence)]
        if beside:
            scene.change(r, note=f"with {' and '.join(sorted({o.what for o in beside}))}: drain, then reset")


def _lost_for_good(scene: Scene) -> None:
    """A memory error on a GPU whose fields say that it cannot be mended goes to a person: the field diagnostic and
    the vendor, not one more reset."""
    flags = [
        r
        for r in scene.readings
        if (
            r.evidence.kind is Kind.GPU_FIELD and r.evidence.code in _LOST_FOR_GOOD and r.fault is FaultClass.HARDWARE
        )
        or (r.evidence.kind is Kind.DCGM_ERROR and r.evidence.code in _LOST_FOR_GOOD_DCGM)
    ]
    for r in [r for r in scene.readings if r.evidence.kind is Kind.XID and r.tier is Tier.MEMORY] if flags else []:
        said = sorted({o.phrase for o in flags if scene.same_gpu(o.evidence, r.evidence)})
        if said:
            scene.change(r, first_rung="person", note=f"{said[0]}: field diagnostic, then the vendor")


def _dead_peer(scene: Scene) -> None:
    """A link error beside a GPU that is gone, or a switch that failed, follows it: the other end of the link is at
    fault."""
    gone = [r for r in scene.readings if r.tier is Tier.GPU_GONE]
    switch = [r for r in scene.readings if r.tier is Tier.SWITCH]
    for r in [r for r in scene.readings if r.tier is Tier.LINK and r.evidence.kind is Kind.XID]:
        here = r.evidence.node
        peer = next(
            (o for o in gone if o.evidence.node == here and scene.gpu(o.evidence) != scene.gpu(r.evidence)), None
        )
        peer = peer or next((o for o in switch if o.evidence.node == here), None)
        if peer is not None:
            note = f"follows {peer.short}, the other end of the link"
            scene.change(r, tier=Tier.SECONDARY, fault=FaultClass.UNKNOWN, note=note)


def _alone(scene: Scene) -> None:
    """An XID 45 that follows nothing: processes were ended, or the fabric manager wants a restart."""
    others = [
        r for r in scene.readings if r.evidence.kind in {Kind.XID, Kind.SXID, Kind.GPU_LOST} and r.rule != "xid:45"
    ]
    if not others and not any(r.evidence.kind in JOB_SIDE for r in scene.readings):
        for r in scene.xids(45):
            scene.change(r, note="alone, so a kill; NVIDIA names the fabric manager when no process was ended")


def _power_smoothing(scene: Scene) -> None:
    """A 162 ends what a 163 before it on the same GPU began."""
    on_again = scene.xids(162)
    for r in scene.xids(163):
        later: Gpu | None = scene.gpu(r.evidence)
        ends = [o for o in on_again if scene.gpu(o.evidence) == later and o.evidence.node == r.evidence.node]
        if any(scene.order(o.evidence) > scene.order(r.evidence) for o in ends):
            scene.readings.remove(r)
            scene.refused.append(f"over: {r.short} was ended by an XID 162")

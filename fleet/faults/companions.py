"""What pieces of evidence mean together: who follows whom, what raises a verdict, what lies outside the window."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind, Source
from fleet.faults.reading import Reading, Tier
from fleet.faults.repeats import TIMES, Names, event_time, gpu_names, order, repeated, same_gpu_name
from fleet.faults.tables import Tables, worst_rung
from fleet.faults.xid_text import named_xid, place

BEFORE = 660.0
"""Seconds before a job's failure in which its cause may lie: the collective timeout (600) and a minute."""
AFTER = 60.0
"""Seconds after it in which late lines still belong to it."""
FRAGMENTED_TRIES = 86400.0
"""Seconds in which a second fragmented out-of-memory of one job is the program's."""

JOB_SIDE = {Kind.JOB_EXIT, Kind.LOG_TEXT, Kind.JOB_STALLED, Kind.JOB_REQUEUED, Kind.BAD_RESUME, Kind.HANG}
"""Evidence that is about a job, not about a node."""


@dataclass
class Scene:
    """All readings of one judgement, and what was said on the way."""

    readings: list[Reading]
    history: Sequence[Evidence]
    tables: Tables
    now: float
    refused: list[str] = field(default_factory=list)
    names: Names = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = gpu_names([*(r.evidence for r in self.readings), *self.history])

    def same_gpu(self, one: Evidence, other: Evidence) -> bool:
        """On one GPU, or on one node where one of them does not name its GPU."""
        left, right = same_gpu_name(one, self.names), same_gpu_name(other, self.names)
        return one.node == other.node and (left == right or left is None or right is None)


def apply_rules(scene: Scene) -> None:
    """Each rule may raise, lower to an after-effect, or refuse readings; the order of evidence does not matter."""
    for rule in (_window, _follow_the_named, _repeats, _recovery, _contained, _double_bit, _fragmented):
        rule(scene)
    scene.readings.sort(key=lambda r: (r.tier, r.minor, *order(r.evidence, scene.now)))


def _xids(scene: Scene, *codes: int) -> list[Reading]:
    wanted = {f"xid:{code}" for code in codes}
    return [r for r in scene.readings if r.rule in wanted]


def _window(scene: Scene) -> None:
    """Beside a program's own error, node evidence counts only near it; an unknown time counts as near."""
    own = [r for r in scene.readings if r.tier is Tier.USER and r.evidence.kind in JOB_SIDE]
    if not own:
        return
    failed = min(event_time(r.evidence, scene.now) for r in own)
    kept: list[Reading] = []
    for r in scene.readings:
        at = r.evidence.happened_at
        if r.evidence.kind in JOB_SIDE or at is None or failed - BEFORE <= at <= failed + AFTER:
            kept.append(r)
            continue
        side = f"{failed - at:.0f} s before" if at < failed else f"{at - failed:.0f} s after"
        scene.refused.append(f"{r.fault}: {r.short} lies {side} the job's failure, outside its window")
    scene.readings = kept


def _follow_the_named(scene: Scene) -> None:
    """An XID 45 whose tail names its cause stands for that cause when nothing else tells it."""
    for r in _xids(scene, 45):
        code = named_xid(r.evidence.detail.partition("45,")[2])
        row = scene.tables.xid.get(code or 0)
        if row is None or row.xid in {43, 45} or _xids(scene, row.xid):
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


def _repeats(scene: Scene) -> None:
    """XID 13 or 31 in two bursts on one GPU alone within a day: the GPU is suspect, not the program."""
    events = [r.evidence for r in scene.readings if r.evidence.kind is Kind.XID] + list(scene.history)
    events = list({(e.key, e.detail): e for e in sorted(events, key=lambda e: order(e, scene.now))}.values())
    counted: dict[tuple[object, ...], int] = {}
    for index, r in enumerate(scene.readings):
        if r.tier is not Tier.APP_XID or r.evidence.kind is not Kind.XID:
            continue
        name = (r.evidence.code, same_gpu_name(r.evidence, scene.names), place(r.evidence.detail))
        if name not in counted:
            counted[name] = repeated(r.evidence, events, scene.names, scene.now)
        bursts = counted[name]
        if bursts < TIMES:
            continue
        scene.refused.append(f"user: {r.short} came {bursts} times within a day on this GPU alone")
        scene.readings[index] = replace(
            r,
            tier=Tier.OTHER_HARDWARE,
            fault=FaultClass.HARDWARE,
            rule=f"repeat:{r.evidence.code}",
            phrase=f"{r.phrase}, {bursts} times within a day on this GPU alone",
            first_rung="reset",
            confidence=0.7,
            culprit=Culprit(node=r.evidence.node, gpu=r.evidence.gpu),
        )


def _recovery(scene: Scene) -> None:
    """The newest XID 154 of a GPU raises what else is seen on it to the action it asks for; it never lowers."""
    lines = [r for r in scene.readings if r.rule.startswith("recovery:") or r.rule == "xid:154"]
    lines.sort(key=lambda r: order(r.evidence, scene.now))
    newest = {(r.evidence.node, same_gpu_name(r.evidence, scene.names)): r for r in lines}
    for r in lines:
        if r is not newest[r.evidence.node, same_gpu_name(r.evidence, scene.names)]:
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
    for r in _xids(scene, 48):
        beside = [o for o in _xids(scene, 63, 64) if scene.same_gpu(o.evidence, r.evidence)]
        if beside:
            note = f"with {' and '.join(sorted({o.what for o in beside}))}: drain, then reset"
            scene.readings[scene.readings.index(r)] = replace(r, notes=(*r.notes, note))


def _fragmented(scene: Scene) -> None:
    """Fragments of the allocator are a job's bad luck once and its owner's to mend the second time."""
    for r in [r for r in scene.readings if r.rule == "text:torch_oom_fragmented"]:
        e = r.evidence
        before = [
            o
            for o in scene.history
            if o.source is Source.JOB
            and o.code == "torch_oom_fragmented"
            and o.job == e.job
            and o.key != e.key
            and scene.now - FRAGMENTED_TRIES <= event_time(o, scene.now)
        ]
        if before:
            raised = replace(r, tier=Tier.USER, fault=FaultClass.USER, culprit=Culprit(job=e.job))
            scene.readings[scene.readings.index(r)] = replace(
                raised, phrase=f"{r.phrase}; the second time, so set the allocator or the batch size"
            )

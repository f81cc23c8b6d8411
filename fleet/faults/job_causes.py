"""What a job's own words and end mean together: the first true cause, who killed it, one node's trouble or all
nodes', the link that two ends name, and what only a run elsewhere can tell."""

import re
from collections.abc import Iterable, Sequence

from fleet.faults.evidence import Culprit, Evidence, Fact, FaultClass, Kind
from fleet.faults.reading import NOBODY, Reading, Tier
from fleet.faults.repeats import BURST_GAP, WINDOW
from fleet.faults.scene import Scene, job_nodes

BEFORE, AFTER = 660.0, 60.0
"""Seconds before and after a job's end in which a record of the kernel belongs to it."""
TOLERANCE = 2.0
"""Seconds by which two clocks, or torchelastic's stamp of one second, may differ."""
FRAGMENTED_TRIES = 86400.0
"""Seconds in which a second fragmented out-of-memory of one job is the program's."""
FABRIC_START = 600.0
"""Seconds after a boot in which a fabric may still be starting. Ours: fabric managers need a few minutes."""
LEFTOVER_GIB = 1.0
"""GiB in /dev/shm that belong to nobody and explain why a data loader finds none. Ours."""
DAYS = 7 * 86400.0
"""Seconds in which the same text of other jobs is compared."""

_KILLS = ("exit:137", "text:dataloader_killed", "text:bare_killed")
_CAUSES = {
    "text:file_not_found",
    "text:os_error",
    "text:dataloader_killed",
    "text:dataloader_timeout",
    "text:cuda_no_device",
    "text:python_exception",
}
"""Texts that say nothing sure and still name a cause of their own: what comes after them follows them."""
_OF_ONE_NODE = {"text:file_not_found", "text:import_error", "exit:127", "text:no_space"}
_REPLAY = (
    "run the same step again on other nodes: gone there, its present nodes are suspects; "
    "the same there, it is the program or its data"
)
_NOT_FINITE = re.compile(r"\b(?:nan|inf|non-?finite|not finite|diverged?)\b", re.IGNORECASE)
_RAN_BEFORE = ", last step seen "
_STEP = re.compile(r", last step seen (\d{1,12})$")
_GID = re.compile(r"(local|remote)Gids?\s?:{0,1}\s?([0-9a-fA-F:.]{4,60})")
_PATH = re.compile(r"'([^']{1,300})'|(/[\w./-]{1,300})")


def job_causes(scene: Scene) -> None:
    """All rules about a job's own words, in an order in which a later one sees what an earlier one said."""
    for rule in (
        _fragmented,
        _killed,
        _segfault,
        _first_cause,
        _one_node_or_all,
        _shared_memory,
        _fabric_not_ready,
        _in_many_jobs,
        _link_ends,
        _again_on_its_node,
        _not_a_number,
    ):
        rule(scene)


def _fragmented(scene: Scene) -> None:
    """Fragments of the allocator are a job's bad luck once and its owner's to mend the second time."""
    for r in scene.by_rule("text:torch_oom_fragmented"):
        if _before(scene, r, FRAGMENTED_TRIES):
            scene.change(
                r,
                tier=Tier.USER,
                fault=FaultClass.USER,
                culprit=Culprit(job=r.evidence.job),
                phrase=f"{r.phrase}; the second time, so set the allocator or the batch size",
            )


def _killed(scene: Scene) -> None:
    """A SIGKILL is attributed to the record of the kernel that explains it; without one it stays what it is."""
    for r in scene.by_rule(*_KILLS):
        for code in ("oom_job", "oom_node"):
            record = _record(scene, r.evidence, code)
            if record is None:
                continue
            own = code == "oom_job"
            row = scene.tables.kernel_texts[code]
            scene.change(
                r,
                tier=Tier.RECORD if own else Tier.TRANSIENT,
                fault=FaultClass.USER if own else FaultClass.TRANSIENT,
                rule=f"killed:{code}",
                phrase=f"{row.title} ({record.node}: {record.detail[-160:]})"
                + ("" if own else "; it is charged to nobody"),
                confidence=0.7,
                culprit=Culprit(job=r.evidence.job) if own else Culprit(node=record.node, job=r.evidence.job),
            )
            break


def _segfault(scene: Scene) -> None:
    """A process that died inside NCCL is a word about that node's network and GPUs, not about the program."""
    for r in scene.by_rule("exit:139"):
        record = _record(scene, r.evidence, "segfault_nccl")
        if record is not None:
            phrase = f"a process died inside NCCL on {record.node}: look at its network and its GPUs"
            culprit = Culprit(node=record.node, job=r.evidence.job)
            scene.change(r, rule="segfault_nccl", phrase=phrase, culprit=culprit, confidence=0.4)


def _record(scene: Scene, e: Evidence, code: str) -> Evidence | None:
    """The kernel's record on a node of the job, in the window of its end; the nearest one."""
    nodes = {e.node} if e.node else job_nodes((x.evidence for x in scene.readings), e.job)
    at = scene.when(e)
    found = [
        o
        for o in scene.seen_around
        if o.kind is Kind.KERNEL_TEXT
        and o.code == code
        and (not nodes or o.node in nodes)
        and at - BEFORE <= scene.when(o) <= at + AFTER
    ]
    return min(found, key=lambda o: abs(scene.when(o) - at), default=None)


def _first_cause(scene: Scene) -> None:
    """The earliest true cause across the ranks of a job decides; later exceptions follow from it. Collectives that
    fail and connections that are lost are never taken for the first cause."""
    by_job: dict[str | None, list[Reading]] = {}
    for r in scene.readings:
        if r.evidence.kind is Kind.LOG_TEXT and (r.tier is Tier.USER or r.rule in _CAUSES):
            by_job.setdefault(r.evidence.job, []).append(r)
    for told in by_job.values():
        first = next((r for r in told if all(o is r or _earlier(r, o) for o in told)), None)
        if first is None:
            continue
        for r in told:
            if r is not first:
                note = f"came after {first.what}"
                scene.change(r, tier=Tier.SECONDARY, fault=FaultClass.UNKNOWN, note=note)


def _earlier(one: Reading, other: Reading) -> bool:
    """Surely before, by the one clock that both have: the epoch's, or the lines of one log."""
    a, b = one.evidence, other.evidence
    if a.happened_at is not None and b.happened_at is not None:
        return b.happened_at - a.happened_at > TOLERANCE
    one_log = a.happened_at is None and b.happened_at is None and a.seen_at == b.seen_at
    return one_log and a.stamp is not None and b.stamp is not None and a.stamp < b.stamp


def _one_node_or_all(scene: Scene) -> None:
    """A missing file, module or command on one node of several is that node's mount or image; on all it is the
    program's."""
    for r in [r for r in scene.readings if r.rule in _OF_ONE_NODE]:
        e = r.evidence
        nodes = job_nodes((x.evidence for x in scene.readings), e.job)
        said = {x.evidence.node for x in scene.by_rule(r.rule) if x.evidence.job == e.job} - {None}
        if len(nodes) < 2 or not said or r.tier is Tier.SECONDARY:
            continue
        if r.rule == "text:file_not_found" and said >= nodes and _one_path(scene, e):
            phrase = f"{r.phrase}; on all its nodes, so the path is wrong"
            job = Culprit(job=e.job)
            scene.change(
                r, tier=Tier.USER, fault=FaultClass.USER, rule="all_nodes", phrase=phrase, culprit=job, confidence=0.7
            )
        elif len(said) == 1 and (r.rule in {"text:file_not_found", "text:no_space"} or _ran_before(scene, e)):
            node = str(next(iter(said)))
            scene.change(
                r,
                tier=Tier.UNKNOWN,
                fault=FaultClass.UNKNOWN,
                rule="one_node",
                phrase=f"{r.phrase}; on {node} alone of {len(nodes)} nodes: its mount, disk or image",
                culprit=Culprit(node=node, job=e.job),
                confidence=0.5,
                elsewhere=True,
            )


def _one_path(scene: Scene, e: Evidence) -> bool:
    texts = [x.evidence.detail for x in scene.by_rule("text:file_not_found") if x.evidence.job == e.job]
    paths = {found.group(0) for text in texts if (found := _PATH.search(text))}
    return len(paths) == 1


def _ran_before(scene: Scene, e: Evidence) -> bool:
    """The program worked before: it made steps in this attempt, or somebody says so."""
    return _RAN_BEFORE in e.detail or any(True for _ in scene.facts_of(Fact.KNOWN_GOOD, job=e.job or ""))


def _shared_memory(scene: Scene) -> None:
    """Shared memory that is full of what a dead job left on one node is no fault of the program."""
    for r in scene.by_rule("text:dataloader_shm"):
        nodes = job_nodes((x.evidence for x in scene.readings), r.evidence.job) | {r.evidence.node}
        said = {x.evidence.node for x in scene.by_rule(r.rule)} - {None}
        full = {f.node for f in scene.facts_of(Fact.SHM_USED) if f.node in nodes and (f.value or 0.0) >= LEFTOVER_GIB}
        if len(full) == 1 and said <= full:
            node = next(iter(full))
            scene.change(
                r,
                tier=Tier.TRANSIENT,
                fault=FaultClass.TRANSIENT,
                rule="leftover_shm",
                phrase=f"the shared memory of {node} is full of what a dead job left: clean it, then start in place",
                culprit=Culprit(node=node, job=r.evidence.job),
            )


def _fabric_not_ready(scene: Scene) -> None:
    """A fabric that is not ready right after a boot is still starting; later it is a fault."""
    for r in scene.by_rule("text:cuda_fabric_not_ready", "field:fabric_in_progress", "dcgm:123"):
        nodes = (
            {r.evidence.node} if r.evidence.node else job_nodes((x.evidence for x in scene.readings), r.evidence.job)
        )
        at = scene.when(r.evidence)
        ages = {f.node: at - scene.when(f) for f in scene.facts_of(Fact.BOOTED) if f.node in nodes}
        young = {node for node, age in ages.items() if 0.0 <= age < FABRIC_START}
        if young:
            names = ", ".join(sorted(str(n) for n in young))
            ago = f"booted {min(ages[n] for n in young):.0f} s ago"
            scene.change(
                r,
                tier=Tier.TRANSIENT,
                fault=FaultClass.TRANSIENT,
                rule="fabric_starting",
                phrase=f"{r.phrase}; {names} {ago}: wait, then start in place",
                first_rung="none",
                culprit=Culprit(node=next(iter(young)) if len(young) == 1 else None, job=r.evidence.job),
            )
        elif ages and r.fault is not FaultClass.HARDWARE:
            culprit = Culprit(node=r.evidence.node, gpu=r.evidence.gpu)
            phrase = f"{r.phrase}; its node booted {min(ages.values()) / 60:.0f} min ago"
            scene.change(
                r,
                tier=Tier.OTHER_HARDWARE,
                fault=FaultClass.HARDWARE,
                rule="fabric_not_ready",
                phrase=phrase,
                first_rung="reboot",
                culprit=culprit,
            )


def _in_many_jobs(scene: Scene) -> None:
    """The same hardware text in several jobs: the node that all of them had is the one at fault, whoever said it."""
    for r in [r for r in scene.readings if r.tier is Tier.TEXT_HARDWARE and r.evidence.job]:
        e = r.evidence
        sets = {
            e.job: _places(x.evidence for x in scene.readings if (x.evidence.job, x.evidence.code) == (e.job, e.code))
        }
        for o in scene.history:
            if o.kind is Kind.LOG_TEXT and o.code == e.code and o.job != e.job and scene.now - DAYS <= scene.when(o):
                sets[o.job] = sets.get(o.job, frozenset()) | _places([o])
        known = [nodes for nodes in sets.values() if nodes]
        common = frozenset.intersection(*known) if len(known) > 1 else frozenset()
        if len(common) == 1:
            node = next(iter(common))
            scene.change(
                r,
                culprit=Culprit(node=node),
                confidence=min(0.9, 0.7 + 0.05 * len(known)),
                note=f"{node} is the one node that all {len(known)} jobs with this text had",
            )


def _places(evidence: Iterable[Evidence]) -> frozenset[str]:
    return frozenset(node for e in evidence for node in (*e.nodes, e.node) if node)


def _link_ends(scene: Scene) -> None:
    """An InfiniBand path that fails: both ends and the link are suspects. An end that fails with another one, too, is
    the culprit."""
    for r in scene.by_rule("text:ib_retry_exceeded"):
        ends = _gids(r.evidence.detail)
        if ends is None:
            continue
        others = [
            (o, pair)
            for o in scene.events
            if o.code == "ib_retry_exceeded" and (pair := _gids(o.detail)) and pair != ends and set(pair) & set(ends)
        ]
        apart = [o for o, _ in others if abs(scene.when(o) - scene.when(r.evidence)) > BURST_GAP]
        pairs = {frozenset(pair) for o, pair in others if o in apart} - {frozenset(ends)}
        common = frozenset(ends).intersection(*pairs) if pairs else frozenset()
        if len(common) != 1:
            note = f"{ends[0]} and {ends[1]}: both ends and the link are suspects, test each with a third node"
            scene.change(r, note=note)
            continue
        gid = next(iter(common))
        node = next((o.node for o in scene.events if o.node and (pair := _gids(o.detail)) and pair[0] == gid), None)
        scene.change(
            r,
            tier=Tier.OTHER_HARDWARE,
            fault=FaultClass.HARDWARE,
            rule="repeat:ib_retry_exceeded",
            phrase=f"the port {gid} failed with {len(pairs) + 1} different peers: it is the one at fault",
            first_rung="reboot",
            confidence=0.7,
            culprit=Culprit(node=node),
        )


def _gids(text: str) -> tuple[str, str] | None:
    """(local, remote) GID of a completion; NCCL writes the remote one without a blank."""
    found = {side: gid.strip(":") for side, gid in _GID.findall(text)}
    return (found["local"], found["remote"]) if {"local", "remote"} <= found.keys() else None


def _again_on_its_node(scene: Scene) -> None:
    """What is one job's affair once and a node's when other jobs meet it there: containers that lose their devices,
    crashes in native code, illegal accesses."""
    for r in scene.by_rule("text:nvml_container"):
        e = r.evidence
        here = _places([e])
        past = [o for o in scene.history if o.kind is Kind.LOG_TEXT and o.code == e.code]
        past = [o for o in past if o.job == e.job or here & _places([o])]
        if any(abs(scene.when(o) - scene.when(e)) > BURST_GAP and scene.now - DAYS <= scene.when(o) for o in past):
            phrase = f"{r.phrase}; it comes again: its platform must mend the cause"
            scene.change(r, fault=FaultClass.UNKNOWN, tier=Tier.UNREAD, first_rung="person", phrase=phrase)
    for r in scene.by_rule("exit:139", "text:cuda_device_assert", "text:cuda_illegal_access"):
        e = r.evidence
        same = [
            o for o in scene.history if (o.kind, o.code) == (e.kind, e.code) and scene.now - WINDOW <= scene.when(o)
        ]
        jobs = {o.job for o in same if o.node == e.node and e.node is not None and o.job != e.job}
        moved = any(o.job == e.job and o.node not in {e.node, None} for o in same)
        if jobs and not moved:
            phrase = f"{r.phrase}; other jobs met it on {e.node} as well"
            scene.change(
                r,
                tier=Tier.TEXT_HARDWARE,
                fault=FaultClass.HARDWARE,
                rule=f"repeat:{e.code}",
                phrase=phrase,
                first_rung="reboot",
                confidence=0.5,
                culprit=Culprit(node=e.node),
            )


def _not_a_number(scene: Scene) -> None:
    """A loss that is no number, or jumps, is data, learning rate or a silent error of the hardware: the same step on
    other nodes tells which. A suspicion, never a verdict by itself."""
    for r in scene.by_rule("text:loss_nan", "text:grad_nan", "text:loss_jump"):
        e = r.evidence
        step = _STEP.search(e.detail)
        clean = [f for f in scene.facts_of(Fact.REPLAY_CLEAN, job=e.job or "") if _same_step(f, step)]
        same = [f for f in scene.facts_of(Fact.REPLAY_SAME, job=e.job or "") if _same_step(f, step)]
        if same or _elsewhere_too(scene, e, step):
            phrase = f"{r.phrase}; the same on other nodes"
            job = Culprit(job=e.job)
            scene.change(
                r,
                tier=Tier.USER,
                fault=FaultClass.USER,
                rule="replay_same",
                phrase=phrase,
                culprit=job,
                confidence=0.7,
            )
        elif clean:
            nodes = sorted(job_nodes((x.evidence for x in scene.readings), e.job))
            names = f" ({', '.join(nodes[:6])})" if nodes else ""
            scene.change(
                r,
                tier=Tier.OTHER_HARDWARE,
                fault=FaultClass.HARDWARE,
                rule="replay_clean",
                phrase=f"{r.phrase}; gone on other nodes, so its first nodes{names} are suspect of silent errors",
                first_rung="person",
                confidence=0.5,
                culprit=Culprit(node=nodes[0]) if len(nodes) == 1 else NOBODY,
            )
        else:
            scene.change(r, phrase=f"{r.phrase}; {_REPLAY}", elsewhere=True)
        for o in [o for o in scene.readings if o.tier is Tier.USER and o.evidence.job == e.job and o is not r]:
            if o.rule.startswith("text:") and _NOT_FINITE.search(o.evidence.detail):
                scene.change(o, tier=Tier.SECONDARY, fault=FaultClass.UNKNOWN, note="tells of the same loss")


def _same_step(fact: Evidence, step: re.Match[str] | None) -> bool:
    return fact.value is None or (step is not None and int(step[1]) == int(fact.value))


def _elsewhere_too(scene: Scene, e: Evidence, step: re.Match[str] | None) -> bool:
    """An earlier attempt of the job had it at the same step on nodes of which none is used now."""
    now = job_nodes((x.evidence for x in scene.readings), e.job)
    if step is None or not now:
        return False
    for o in scene.history:
        then = _STEP.search(o.detail) if o.code == e.code and o.job == e.job else None
        if then and then[1] == step[1] and o.nodes and not now & set(o.nodes):
            return True
    return False


def _before(scene: Scene, r: Reading, window: float) -> Sequence[Evidence]:
    """The same text of the same job in an earlier attempt."""
    e = r.evidence
    return [
        o
        for o in scene.history
        if (o.source, o.code, o.job) == (e.source, e.code, e.job)
        and o.key != e.key
        and scene.now - window <= scene.when(o)
    ]

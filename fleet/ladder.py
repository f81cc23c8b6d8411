"""The ladder: which step is next for a job in trouble (DESIGN.md section 4). Pure, so a dry run tells the truth.

In place, then elsewhere in the cluster, then in another one, then a person. Every budget ends in a question, never
in a silence.
"""

from collections.abc import Iterable

from fleet.budget import NEVER_EARLY, Budget, budget, charge
from fleet.decision import Action, Decision, DecisionInput
from fleet.faults.evidence import FaultClass, Verdict
from fleet.ledger import Attempt, Ledger, Rung
from fleet.policy import Policy, StepMode
from fleet.transfer import other_clusters

_RUNGS = {
    Action.RESTART_IN_PLACE: Rung.IN_PLACE,
    Action.FAILOVER_IN_CLUSTER: Rung.IN_CLUSTER,
    Action.FAILOVER_ACROSS_CLUSTERS: Rung.ACROSS_CLUSTERS,
}
CLUSTER_IS_GONE = "cluster_lost"
"""Rule of a cluster that has not answered for too long: nothing can be started there."""
_UNKNOWN_TRIES = 1
"""An unknown fault gets one try in place and one elsewhere, whatever the limits allow (DESIGN.md section 4)."""

RANK_IS_GONE = frozenset({"xid:79", "gpu_lost", "node_down"})
"""Rules after which a rank cannot answer any more: a checkpoint needs every rank, so waiting long for one is vain."""
PREEMPTED = frozenset(
    {
        "text:slurm_preemption",
        "reason:PREEMPTED",
        "reason:preemption",
        "reason:EvictionByEvictionAPI",
        "reason:PreemptionByScheduler",
    }
)
"""Rules of an end that the scheduler ordered for other people's sake: no node is at fault and no try is spent."""
LOST_RANK_GRACE = 5.0
"""Seconds that a checkpoint is waited for all the same: one that was being written may still be completed."""


def next_step(inp: DecisionInput, policy: Policy) -> Decision:
    """What to do now, and why in one sentence. The same input and policy always give the same answer."""
    verdict = inp.verdict
    if inp.ledger.done_at is not None:
        return _still(inp, policy, Action.NOTHING, f"{inp.ledger.job} has ended; there is nothing to recover")
    if inp.want is not None:
        return _ordered(inp, policy, inp.want)
    if verdict.fault is FaultClass.INFORMATIONAL:
        return _still(inp, policy, Action.NOTHING, f"{_what(verdict)} needs no action; it is recorded")
    if verdict.fault is FaultClass.USER:
        return _still(inp, policy, Action.REFUSE, _own_fault(verdict))
    twin = _same_failure(inp)
    if twin is not None:
        return _still(inp, policy, Action.REFUSE, _own_fault_by_repetition(inp, twin))
    return _climb(inp, policy)


def unusable(ledger: Ledger, verdict: Verdict) -> tuple[str, ...]:
    """Nodes that the next attempt must not use: this verdict's culprit and those of earlier hardware faults."""
    here = ledger.last.cluster if ledger.last else ""
    bad = {
        a.verdict.culprit.node
        for a in ledger.attempts
        if a.verdict and a.verdict.fault is FaultClass.HARDWARE and a.cluster == here
    }
    return _sorted(node for node in (*bad, verdict.culprit.node) if node)


# -- the rungs


def _climb(inp: DecisionInput, policy: Policy) -> Decision:
    """The first rung with a try left; a person when there is none."""
    spent = []
    for action, tries in _rungs(inp, policy):
        left = _budget(inp, policy, action, tries)
        if action is Action.RESTART_IN_PLACE and (inp.verdict.elsewhere or _on_bad_node(inp)):
            continue
        if left.open:
            return _take(inp, policy, action, left)
        spent.append(left)
    return _still(inp, policy, Action.ASK, _exhausted(inp, spent))


def _rungs(inp: DecisionInput, policy: Policy) -> tuple[tuple[Action, int], ...]:
    limits = policy.limits
    place, cluster = limits.in_place_tries, limits.in_cluster_tries
    fault = inp.verdict.fault
    if fault is FaultClass.HARDWARE:
        across = ((Action.FAILOVER_ACROSS_CLUSTERS, limits.across_tries),) if _elsewhere_too(inp, policy) else ()
        if inp.verdict.rule == CLUSTER_IS_GONE:
            return across
        return ((Action.FAILOVER_IN_CLUSTER, cluster), *across)
    if fault is FaultClass.UNKNOWN:
        place, cluster = min(place, _UNKNOWN_TRIES), min(cluster, _UNKNOWN_TRIES)
    return ((Action.RESTART_IN_PLACE, place), (Action.FAILOVER_IN_CLUSTER, cluster))


def _ordered(inp: DecisionInput, policy: Policy, want: Action) -> Decision:
    """A person's order. It overrules the verdict, but neither budgets nor modes, and relocates no user fault."""
    if want not in _RUNGS:
        return _still(inp, policy, want, f"ordered by a person: {want.value.replace('_', ' ')}")
    if want is not Action.RESTART_IN_PLACE and inp.verdict.fault is FaultClass.USER:
        return _still(inp, policy, Action.REFUSE, _own_fault(inp.verdict))
    if want is Action.FAILOVER_ACROSS_CLUSTERS and not _elsewhere_too(inp, policy):
        return _still(inp, policy, Action.ASK, f"{inp.ledger.job} {_NOWHERE_ELSE}")
    limits = policy.limits
    tries = {
        Action.RESTART_IN_PLACE: limits.in_place_tries,
        Action.FAILOVER_IN_CLUSTER: limits.in_cluster_tries,
        Action.FAILOVER_ACROSS_CLUSTERS: limits.across_tries,
    }[want]
    left = _budget(inp, policy, want, tries)
    if not left.open:
        return _still(inp, policy, Action.ASK, _exhausted(inp, [left]))
    return _take(inp, policy, want, left)


def _take(inp: DecisionInput, policy: Policy, action: Action, left: Budget) -> Decision:
    if inp.ledger.last is None:
        why = f"no attempt of {inp.ledger.job} is known, so nothing can be restarted; look at the job itself"
        return _still(inp, policy, Action.ASK, why)
    if action is Action.RESTART_IN_PLACE:
        return _restart(inp, policy, left)
    if action is Action.FAILOVER_ACROSS_CLUSTERS:
        return _across(inp, policy, left, _cause(inp))
    return _failover(inp, policy, left)


def _restart(inp: DecisionInput, policy: Policy, left: Budget) -> Decision:
    delays = policy.limits.in_place_delays
    delay = delays[min(left.made, len(delays) - 1)] if delays else 0.0
    cost = _cost(inp, policy)
    why = f"{_cause(inp)}: restart on the same nodes {_after(delay)}; {_left(left, cost)}"
    exclude = _sorted(set(unusable(inp.ledger, inp.verdict)) - _own(inp))
    return _go(inp, policy, Action.RESTART_IN_PLACE, why, left, delay=delay, exclude=exclude)


def _failover(inp: DecisionInput, policy: Policy, left: Budget) -> Decision:
    bad = _ruled_out(inp)
    exclude = bad if inp.verdict.culprit.node else _sorted({*bad, *_own(inp)})
    usable = _usable(inp, exclude)
    if usable is not None and usable < inp.nodes_wanted and inp.want is not None and not inp.verdict.culprit.node:
        exclude, usable = bad, _usable(inp, bad)  # a person wants it, and no node is blamed: its own nodes will do
    if usable is not None and usable < inp.nodes_wanted:
        across = _budget(inp, policy, Action.FAILOVER_ACROSS_CLUSTERS, policy.limits.across_tries)
        if across.open and inp.verdict.fault is FaultClass.HARDWARE and _elsewhere_too(inp, policy):
            return _across(inp, policy, across, _does_not_fit(inp, exclude, usable))
        return _still(inp, policy, Action.ASK, f"{_does_not_fit(inp, exclude, usable)}; {_FREE_OR_MOVE}")
    cost = _cost(inp, policy)
    without = f"without {', '.join(exclude)}" if exclude else "with no node excluded"
    why = f"{_cause(inp)}: run it again in {inp.cluster} {without}; {_left(left, cost)}"
    return _go(inp, policy, Action.FAILOVER_IN_CLUSTER, why, left, exclude=exclude)


def _across(inp: DecisionInput, policy: Policy, left: Budget, cause: str) -> Decision:
    """Without asking only for a job that opted in, whatever the mode says."""
    why = f"{cause}: run it in another cluster; {_left(left, _cost(inp, policy))}"
    decision = _go(inp, policy, Action.FAILOVER_ACROSS_CLUSTERS, why, left)
    if decision.mode == StepMode.AUTO and not inp.opted_in:
        return decision.model_copy(update={"mode": StepMode.APPROVE.value})
    return decision


# -- what the rules look at


def _same_failure(inp: DecisionInput) -> Attempt | None:
    """An earlier attempt that failed by the same rule at the same training step on different nodes."""
    last = inp.ledger.last
    if last is None or last.progress.step is None:
        return None
    for earlier in inp.ledger.attempts[:-1]:
        same = earlier.verdict is not None and earlier.verdict.rule == inp.verdict.rule
        if same and earlier.progress.step == last.progress.step and _elsewhere(earlier, last, inp.verdict):
            return earlier
    return None


def _elsewhere(earlier: Attempt, last: Attempt, verdict: Verdict) -> bool:
    """Different culprits where both are known; else no node in common, for a shared node could be the culprit."""
    if earlier.cluster != last.cluster:
        return True
    before = earlier.verdict.culprit.node if earlier.verdict else None
    if before and verdict.culprit.node:
        return before != verdict.culprit.node
    return bool(earlier.nodes) and bool(last.nodes) and not set(earlier.nodes) & set(last.nodes)


def _elsewhere_too(inp: DecisionInput, policy: Policy) -> bool:
    return inp.moves is not None and bool(other_clusters(policy, inp.cluster, inp.moves))


def _usable(inp: DecisionInput, exclude: Iterable[str]) -> int | None:
    """`free_nodes` counts the job's own nodes; those of them that are excluded beyond `_ruled_out` come off."""
    if inp.free_nodes is None:
        return None
    return inp.free_nodes - len((set(exclude) & _own(inp)) - set(_ruled_out(inp)))


def _ruled_out(inp: DecisionInput) -> tuple[str, ...]:
    return _sorted({*unusable(inp.ledger, inp.verdict), *inp.exclude})


def _cost(inp: DecisionInput, policy: Policy) -> int:
    """An order is no failure, and a node that was not ready is none of the job's: neither counts double."""
    if inp.verdict.rule in NEVER_EARLY:
        return 1
    return charge(inp.ledger.last, inp.at, policy.limits.early_failure)


def _budget(inp: DecisionInput, policy: Policy, action: Action, tries: int) -> Budget:
    return budget(inp.ledger, _RUNGS[action], inp.verdict.rule, tries, policy.limits.early_failure)


def _own(inp: DecisionInput) -> set[str]:
    return set(inp.ledger.last.nodes) if inp.ledger.last else set()


def _on_bad_node(inp: DecisionInput) -> bool:
    """One of its nodes had a hardware fault under an earlier attempt; nobody restarts there."""
    earlier = inp.verdict.model_copy(update={"culprit": type(inp.verdict.culprit)()})
    return bool(_own(inp) & set(unusable(inp.ledger, earlier)))


def _sorted(nodes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(nodes)))


# -- words

_FREE_OR_MOVE = "free or return nodes, or move the job by hand"
_NOWHERE_ELSE = "cannot move to another cluster: it has no template for one, or its checkpoint no way there (`sites`)"


def _what(verdict: Verdict) -> str:
    return f"{verdict.title} ({verdict.rule})" if verdict.title else verdict.rule


def _cause(inp: DecisionInput) -> str:
    if inp.want is not None:
        return inp.verdict.title or "ordered by a person"
    node = inp.verdict.culprit.node
    where = f" on {node}" if node and node not in inp.verdict.title.split() else ""
    return f"{_what(inp.verdict)}{where}"


def _after(delay: float) -> str:
    return f"in {delay:.0f} s" if delay else "at once"


def _left(left: Budget, cost: int) -> str:
    early = ", this one counts double because the failure came right after the start" if cost > 1 else ""
    return f"{left.left_after(cost)} of {left.tries} tries left for this cause{early}"


def _own_fault(verdict: Verdict) -> str:
    return (
        f"{_what(verdict)} is a fault of the job itself: it would fail the same way on any node, so it is not moved; "
        "its owner gets the cause"
    )


def _own_fault_by_repetition(inp: DecisionInput, twin: Attempt) -> str:
    last = inp.ledger.last
    assert last is not None  # noqa: S101 - `_same_failure` found it
    return (
        f"{_what(inp.verdict)} struck at training step {last.progress.step} in attempts {twin.generation} and "
        f"{last.generation} on different nodes, so it is a fault of the job itself and it is not moved; "
        "its owner gets the cause"
    )


def _exhausted(inp: DecisionInput, spent: list[Budget]) -> str:
    names = {Rung.IN_PLACE: "in place", Rung.IN_CLUSTER: "in the cluster", Rung.ACROSS_CLUSTERS: "across clusters"}
    tried = " and ".join(f"{b.spent} of {b.tries} {names[b.rung]}" for b in spent) or "none"
    return (
        f"{_cause(inp)} again, and its tries are spent ({tried}); a person must decide whether to try once more, "
        "to move the job or to end it"
    )


def _does_not_fit(inp: DecisionInput, exclude: tuple[str, ...], usable: int) -> str:
    out = f" without {', '.join(exclude)}" if exclude else ""
    have = max(0, usable)
    return (
        f"{_cause(inp)}: the job needs {inp.nodes_wanted} nodes and {inp.cluster} has {have}{out} "
        f"({inp.nodes_wanted - have} too few)"
    )


# -- the answer


def _go(
    inp: DecisionInput,
    policy: Policy,
    action: Action,
    why: str,
    left: Budget,
    *,
    delay: float = 0.0,
    exclude: tuple[str, ...] = (),
) -> Decision:
    cost = _cost(inp, policy)
    under = _under(policy)
    if inp.verdict.rule in RANK_IS_GONE:
        under["checkpoint_grace"] = min(policy.limits.checkpoint_grace, LOST_RANK_GRACE)
    return Decision(
        action=action,
        why=why,
        delay=delay,
        exclude=exclude,
        budget_left=left.left_after(cost),
        charge=cost,
        mode=policy.mode(action.value).value,
        **under,
    )


def _still(inp: DecisionInput, policy: Policy, action: Action, why: str) -> Decision:
    """A decision that changes nothing in the cluster and costs nothing. The nodes to avoid stay named."""
    return Decision(action=action, why=why, exclude=unusable(inp.ledger, inp.verdict), charge=0, **_under(policy))


def _under(policy: Policy) -> dict[str, str | float]:
    limits = policy.limits
    return {
        "policy_hash": policy.digest,
        "checkpoint_grace": limits.checkpoint_grace,
        "step_timeout": limits.step_timeout,
        "run_timeout": limits.run_timeout,
        "across_size": limits.across_size,
    }

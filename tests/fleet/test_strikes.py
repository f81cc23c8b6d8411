"""What gets onto the record of a node, from evidence, decisions and jobs."""

import pytest

from fleet.decision import Action, DecisionInput
from fleet.faults.evidence import Culprit, Evidence, FaultClass, Kind, Source, Verdict
from fleet.ledger import Attempt, Ledger, Rung
from fleet.model import JobTokens, NativeJob, Phase
from fleet.strikes import DAY, StrikeKind, failure_strikes, job_strikes, samples_of, single_runs, strikes_of

UUID = "GPU-6c4a1b9e-0000-4000-8000-000000000001"


def seen(kind: Kind, **more: object) -> Evidence:
    given = {"source": Source.KERNEL, "kind": kind, "cluster": "alpha", "node": "a1", "code": "79", "seen_at": 50.0}
    return Evidence.model_validate(given | more)


@pytest.mark.parametrize(
    ("kind", "strike"),
    [(Kind.XID, StrikeKind.XID), (Kind.NODE_DOWN, StrikeKind.TAKEN_OUT), (Kind.NODE_DRAINED, StrikeKind.TAKEN_OUT)],
)
def test_evidence_of_a_fault_is_a_strike_of_its_node(kind: Kind, strike: StrikeKind) -> None:
    (one,) = strikes_of(seen(kind))
    assert (one.kind, one.cluster, one.node, one.at) == (strike, "alpha", "a1", 50.0)


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.XID, Kind.NODE_DOWN, Kind.NODE_DRAINED}))
def test_other_evidence_is_none(kind: Kind) -> None:
    assert strikes_of(seen(kind)) == ()


@pytest.mark.parametrize(("code", "count"), [("48", 1), ("171", 0), ("172", 0)])
def test_the_detail_lines_of_a_double_bit_error_are_no_strikes_beside_it(code: str, count: int) -> None:
    assert len(strikes_of(seen(Kind.XID, code=code))) == count


def test_evidence_without_a_node_is_on_nobodys_record() -> None:
    assert strikes_of(seen(Kind.XID, node=None)) == ()
    assert samples_of(seen(Kind.MEASURED, node=None, value=1.0)) == ()


def test_a_strike_knows_its_gpu_by_uuid_only() -> None:
    (by_uuid,) = strikes_of(seen(Kind.XID, gpu=UUID, pci="0000:3b:00"))
    (by_address,) = strikes_of(seen(Kind.XID, gpu="0000:3b:00"))
    assert (by_uuid.gpu, by_uuid.pci) == (UUID, "0000:3b:00")
    assert (by_address.gpu, by_address.pci) == (None, "0000:3b:00")


def test_one_thing_told_with_and_without_its_boot_is_one_strike() -> None:
    told = [seen(Kind.XID, happened_at=20.0), seen(Kind.XID, happened_at=20.0, boot="b1", seen_at=60.0)]
    told += [seen(Kind.XID, raw_hash="ab"), seen(Kind.XID, raw_hash="ab", boot="b1", seen_at=60.0)]
    others = [seen(Kind.XID, happened_at=30.0), seen(Kind.XID, happened_at=20.0, code="48"), seen(Kind.XID)]
    others += [seen(Kind.XID, raw_hash="ab", seen_at=50.0 + DAY)]
    assert len({s.key for e in told for s in strikes_of(e)}) == 2
    assert len({s.key for e in [*told, *others] for s in strikes_of(e)}) == 6


def test_nothing_happened_after_it_was_seen() -> None:
    assert [s.at for s in strikes_of(seen(Kind.XID, happened_at=350.0))] == [50.0]
    assert [s.at for s in strikes_of(seen(Kind.XID, happened_at=20.0))] == [20.0]


def test_a_figure_without_a_number_or_a_name_is_none() -> None:
    assert len(samples_of(seen(Kind.MEASURED, value=0.0))) == 1
    assert samples_of(seen(Kind.MEASURED)) == ()
    assert samples_of(seen(Kind.MEASURED, value=1.0, code=None)) == ()
    assert samples_of(seen(Kind.XID, value=1.0)) == ()


A1 = Culprit(node="a1")


def decided(
    *nodes: str, fault: FaultClass = FaultClass.HARDWARE, culprit: Culprit = A1, **more: object
) -> DecisionInput:
    attempt = Attempt(generation=3, cluster="alpha", native_id="7", restarts=2, rung=Rung.IN_PLACE, nodes=nodes)
    given = {
        "cluster": "alpha",
        "verdict": Verdict(fault=fault, rule="xid-79", culprit=culprit),
        "ledger": Ledger(job="llm", submitted_at=0.0, attempts=(attempt,)),
        "at": 90.0,
    }
    return DecisionInput.model_validate(given | more)


def test_an_attempt_that_hardware_ended_is_on_the_record_of_the_node_at_fault() -> None:
    (alone,) = failure_strikes(decided("a1"))
    (of_two,) = failure_strikes(decided("a0", "a1", culprit=Culprit(node="a1", gpu=UUID)))
    assert (alone.kind, alone.gpu, alone.job, alone.at) == (StrikeKind.SINGLE_NODE_FAIL, None, "llm", 90.0)
    assert (of_two.kind, of_two.node, of_two.gpu) == (StrikeKind.MULTI_NODE_FAIL, "a1", UUID)


def test_a_decision_made_again_for_one_attempt_is_the_same_strike() -> None:
    first, again = decided("a1"), decided("a1", at=500.0)
    assert [s.key for s in failure_strikes(first)] == [s.key for s in failure_strikes(again)]


@pytest.mark.parametrize(
    "given",
    [
        decided("a1", fault=FaultClass.USER),
        decided("a1", fault=FaultClass.UNKNOWN),
        decided("a1", culprit=Culprit()),
        decided("a2", "a3"),
        decided("a1", want=Action.FAILOVER_IN_CLUSTER),
        decided("a1", ledger=Ledger(job="llm", submitted_at=0.0)),
    ],
)
def test_what_no_node_is_to_blame_for_is_on_nobodys_record(given: DecisionInput) -> None:
    assert failure_strikes(given) == ()


def job(phase: Phase, *nodes: str, **more: object) -> NativeJob:
    given = {"cluster": "alpha", "native_id": "7", "name": "train", "user": "ada", "phase": phase, "nodes": nodes}
    return NativeJob.model_validate(given | more)


def test_a_job_that_lost_its_only_node_blames_it() -> None:
    (one,) = job_strikes([job(Phase.NODE_LOST, "a1", restarts=2)], (), now=70.0)
    assert (one.kind, one.node, one.job, one.at) == (StrikeKind.SINGLE_NODE_FAIL, "a1", "7", 70.0)


def test_of_several_nodes_only_those_that_are_down_are_blamed() -> None:
    lost = job(Phase.NODE_LOST, "a1", "a2", "a3")
    assert [(s.kind, s.node) for s in job_strikes([lost], {"a2", "a9"}, now=70.0)] == [
        (StrikeKind.MULTI_NODE_FAIL, "a2")
    ]
    assert job_strikes([lost], (), now=70.0) == ()


def test_a_users_exclusion_counts_and_ours_does_not() -> None:
    excluding = job(Phase.PENDING, excluded=("a1", "a2"))
    ours = excluding.model_copy(update={"tokens": JobTokens(supervise=True)})
    over = job(Phase.SUCCEEDED, "a3", excluded=("a1",))
    found = job_strikes([excluding, ours, over], (), now=70.0)
    assert [(s.kind, s.node, s.code) for s in found] == [
        (StrikeKind.EXCLUDED, "a1", "ada"),
        (StrikeKind.EXCLUDED, "a2", "ada"),
    ]


def test_runs_are_the_attempts_on_one_node_alone() -> None:
    running = job(Phase.RUNNING, "a1", restarts=1, started_at=60.0)
    jobs = [running, job(Phase.RUNNING, "a1", "a2"), job(Phase.PENDING), job(Phase.SUCCEEDED, "a1")]
    assert [(r.node, r.at) for r in single_runs(jobs, now=70.0)] == [("a1", 60.0)]
    again = single_runs([running.model_copy(update={"restarts": 2})], now=70.0)
    assert again[0].key != single_runs([running], now=70.0)[0].key

"""One row of the tables of cases: what is known, and what must be said."""

from collections.abc import Sequence
from typing import NamedTuple

from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, Fact, FaultClass, Kind, Source, Verdict
from fleet.faults.job_log import parse_job_log
from fleet.faults.kernel_log import read_kernel_log
from tests.faults.making import GPU, NOW, TABLES, seen, traceback, xid

H, T, U, N, I = (  # noqa: E741 - one letter a column, as the tables need
    FaultClass.HARDWARE,
    FaultClass.TRANSIENT,
    FaultClass.USER,
    FaultClass.UNKNOWN,
    FaultClass.INFORMATIONAL,
)
OFF = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
HOUR = 3600.0
DAY = 24 * HOUR


class Case(NamedTuple):
    """`of` names the rule or the case of the reference; `shows` is `+` where it must fire, `-` where it must not."""

    of: str
    shows: str
    name: str
    now: Sequence[Evidence]
    fault: FaultClass
    rule: str
    rung: str = "none"
    before: Sequence[Evidence] = ()
    around: Sequence[Evidence] = ()
    node: str | None = "any"
    """Node that is blamed; `any` where the case does not tell."""
    says: str = ""
    """A part of the companions, refusals or title."""
    says_not: str = ""
    elsewhere: bool = False

    @property
    def id(self) -> str:
        """Name of the test."""
        return f"{self.of}{self.shows} {self.name}"

    @property
    def verdict(self) -> Verdict:
        return self.judged(self.now, self.before, self.around)

    def judged(self, now: Sequence[Evidence], before: Sequence[Evidence], around: Sequence[Evidence]) -> Verdict:
        return classify(now, history=before, around=around, tables=TABLES, boot=BOOTS, now=NOW)


def holds(case: Case) -> None:
    """The verdict is the wanted one, with the wanted words, and does not depend on the order of what is known."""
    verdict = case.verdict
    beside = " ".join((*verdict.companions, *verdict.refused))
    said = f"{verdict.title} {beside}"
    assert (verdict.fault, verdict.rule, verdict.first_rung) == (case.fault, case.rule, case.rung), said
    assert case.node in {"any", verdict.culprit.node}
    assert case.says in said
    assert not case.says_not or case.says_not not in beside
    assert verdict.elsewhere is case.elsewhere
    again = case.judged(list(reversed(case.now)), list(reversed(case.before)), list(reversed(case.around)))
    assert again == verdict


BOOTS = dict.fromkeys(("alpha1", "alpha2", "alpha3", *(f"beta{n}" for n in range(40))), "boot-2")


def fact(code: Fact, *, ago: float = 0.0, **more: object) -> Evidence:
    """A circumstance."""
    known = {"source": Source.PERSON, "kind": Kind.FACT, "cluster": "alpha", "code": code}
    return Evidence.model_validate(known | {"seen_at": NOW, "happened_at": NOW - ago} | more)


def lines(*messages: str, node: str = "alpha2", ago: float = 30.0) -> list[Evidence]:
    """Evidence of a kernel log whose lines are as they are given."""
    text = "\n".join(f"[ {1000 + n}.5] {message}" for n, message in enumerate(messages))
    return list(read_kernel_log(text, cluster="alpha", node=node, seen_at=NOW - ago, boot="boot-2").evidence)


def kernel_text(code: str, node: str, *, ago: float = 30.0, detail: str = "", pci: str | None = None) -> Evidence:
    """A line of a kernel that is no XID, with its time."""
    told = seen(Kind.KERNEL_TEXT, Source.KERNEL, code=code, node=node, ago=ago, detail=detail, boot="boot-2")
    return told.model_copy(update={"pci": pci})


def field(code: str, value: float, *, gpu: str = GPU, node: str = "alpha2", ago: float = 30.0) -> Evidence:
    """A field of a GPU."""
    told = seen(Kind.GPU_FIELD, Source.NODE_AGENT, code=code, node=node, gpu=gpu, ago=ago, boot="boot-2")
    return told.model_copy(update={"value": value})


def words(
    *text: str,
    job: str = "train-7",
    ago: float = 10.0,
    nodes: Sequence[str] = (),
    ranks: Sequence[str] = (),
    attempt: int = 2,
) -> list[Evidence]:
    """Evidence of a job's log; `ranks` are the nodes of ranks 0, 1, ..."""
    places = dict(enumerate(ranks))
    told = parse_job_log(
        text, cluster="alpha", job=job, seen_at=NOW - ago, attempt=attempt, rank_nodes=places, nodes=nodes
    )
    return list(told)


def raised(error: str, rank: int = 0, **more: object) -> list[Evidence]:
    """Evidence of one rank's traceback."""
    return words(*traceback(error, rank=rank), **more)  # type: ignore[arg-type]


def every(code: int, *ago: float, detail: str = "", gpu: str = GPU, node: str = "alpha2") -> list[Evidence]:
    """An XID at several times."""
    return [xid(code, ago=one, detail=detail, gpu=gpu, node=node) for one in ago]


def on_nodes(code: int, count: int, *, ago: float = 300.0) -> list[Evidence]:
    """The same XID on nodes beta0, beta1, ..."""
    return [xid(code, node=f"beta{n}", ago=ago + n, gpu="0000:1b:00") for n in range(count)]

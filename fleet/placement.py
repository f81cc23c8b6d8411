"""Which cluster a job goes to, and why this one and none of the others (DESIGN.md sections 2 and 7). Pure.

A cluster that cannot take the job is out, with every reason. The others are compared criterion by criterion, in the
order of `CRITERIA`; the first that differs decides. Rules and their sources: reference, placement and queueing.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from pydantic import Field

from fleet.capacity import same_model
from fleet.model import Name, NodeGroup, Quota, Room, Value
from fleet.units import duration_text

LARGE_GPUS = 64
"""A job of so many GPUs is large: it gets the emptiest cluster, and waiting ones are kept room for (the size classes
of Samsung SDS: below 8, 8 to 63, 64 and more)."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Node counts of the jobs that room is kept for, each as likely as the other: no public trace says better."""


class Request(Value):
    """What a job needs wherever it runs. It takes whole nodes."""

    job: str
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    gpu_models: tuple[str, ...] = ()
    """Any of these will do; empty: any model."""
    max_domains: int | None = Field(default=None, ge=1)
    """Topology domains (switches, blocks) that it may be spread over; None: any number."""


class Stock(Value):
    """One thing of the job's, the newest complete checkpoint or the dataset, as seen from one cluster."""

    there: bool
    """Verified there."""
    seconds: float | None = None
    """What bringing it takes (`fleet.ettr.copy_time`); None where no way is known, and 0 counts where it is there."""
    detail: str = ""
    """What it is, for people: `step 30`, and where it would come from."""


class Offer(Value):
    """One cluster as a place for the job."""

    cluster: Name
    room: Room | None
    """None: it could not be asked, or need not be."""
    unreadable: str = ""
    """Why not."""
    scope: str = ""
    """Namespace or account that the job would have there: its quotas bind."""
    lacks: tuple[str, ...] = ()
    """What the job's environment lacks there, such as its template, a partition or a namespace."""
    excluded: str = ""
    """Why it is not to be asked now, such as an attempt a minute ago."""
    checkpoint: Stock | None = None
    """None: the job has no checkpoint yet."""
    dataset: Stock | None = None
    """None: the job names none."""


class CriterionName(StrEnum):
    """What clusters are compared by, the strongest first."""

    CHECKPOINT = "checkpoint"
    DATASET = "dataset"
    SWITCHES = "switches"
    FRAGMENTATION = "fragmentation"
    NAME = "name"


class Candidate(Value):
    """One cluster in the answer."""

    cluster: Name
    rank: int | None = None
    """1 is the choice, 2 the next one to try; None: it cannot take the job."""
    why: str
    """Why it is the choice, why it comes after the choice, or everything for which it cannot take the job."""
    facts: Mapping[CriterionName, str] = {}
    """What it was compared by, in words; empty where it cannot take the job."""


class Placement(Value):
    """The choice and its reasons."""

    job: str
    choice: Name | None
    """None: no cluster can take the job now."""
    why: str
    candidates: tuple[Candidate, ...]
    """Those that can take it, best first, then the others by name."""

    @property
    def order(self) -> tuple[str, ...]:
        """The clusters to try, best first."""
        return tuple(c.cluster for c in self.candidates if c.rank is not None)


class Seat(NamedTuple):
    """Where the job would sit in one cluster."""

    request: Request
    offer: Offer
    model: str
    free: Mapping[str, int]
    """Free nodes of that model in each domain."""
    taken: Mapping[str, int]
    total: int
    """Nodes of that model that are large enough, busy ones included."""

    @property
    def free_nodes(self) -> int:
        return sum(self.free.values())

    @property
    def domains(self) -> int:
        """Domains that it is spread over. Nodes whose domain is not known may hang on one each."""
        return sum(count if domain == "" else 1 for domain, count in self.taken.items())


def place(request: Request, offers: Iterable[Offer]) -> Placement:
    """The order in which clusters are tried. The same values give the same answer, in whatever order they come.

    Raises ValueError for two offers of one cluster.
    """
    found = sorted(offers, key=lambda offer: offer.cluster)
    names = [offer.cluster for offer in found]
    twice = [one for one, following in pairwise(names) if one == following]
    if twice:
        raise ValueError(f"a cluster is offered twice: {twice[0]}")
    seats: list[Seat] = []
    out: list[Candidate] = []
    for offer in found:
        seat, reasons = _judge(request, offer)
        if seat is None:
            out.append(Candidate(cluster=offer.cluster, why="; ".join(reasons)))
        else:
            seats.append(seat)
    seats.sort(key=_key)
    inside = [_candidate(place, seat, seats) for place, seat in enumerate(seats)]
    choice = inside[0] if inside else None
    return Placement(
        job=request.job,
        choice=choice.cluster if choice else None,
        why=f"{choice.cluster}: {choice.why}" if choice else _nowhere(out),
        candidates=(*inside, *out),
    )


# -- who can take it


def _judge(request: Request, offer: Offer) -> tuple[Seat | None, list[str]]:
    """The seat, or every reason why there is none."""
    reasons = [offer.excluded] if offer.excluded else []
    room = offer.room
    if room is None:
        reasons += offer.lacks
        if offer.unreadable or not reasons:
            reasons.append(f"it cannot be asked: {offer.unreadable or 'no answer'}")
        return None, reasons
    seat, why = _best_seat(request, offer, room)
    reasons += [why] if why else []
    reasons += [text for quota in room.quotas if (text := _over(request, offer.scope, quota))]
    reasons += list(offer.lacks)
    for what, stock in (("newest complete checkpoint", offer.checkpoint), ("dataset", offer.dataset)):
        if stock is not None and not stock.there and stock.seconds is None:
            which = f" ({stock.detail})" if stock.detail else ""
            reasons.append(f"the {what}{which} is not there, and no way to bring it is known")
    return (None, reasons) if reasons else (seat, [])


def _best_seat(request: Request, offer: Offer, room: Room) -> tuple[Seat | None, str]:
    """Within one cluster: nodes of one model, by the same criteria."""
    models: dict[str, list[NodeGroup]] = {}
    for group in room.groups:
        if group.gpus >= request.gpus_per_node and _is_wanted(request, group):
            models.setdefault(group.gpu_model, []).append(group)
    if not models:
        return None, _no_such_nodes(request, room.groups)
    seats = [_seat(request, offer, model, groups) for model, groups in sorted(models.items())]
    fitting = [seat for seat in seats if sum(seat.taken.values()) == request.nodes]
    if not fitting:
        most = max(seats, key=lambda seat: (seat.total, seat.free_nodes))
        return None, _too_few(request, most)
    limit = request.max_domains
    close = [seat for seat in fitting if limit is None or seat.domains <= limit]
    if not close:
        return None, _too_far(request, min(fitting, key=lambda seat: seat.domains))
    return min(close, key=_key), ""


def _is_wanted(request: Request, group: NodeGroup) -> bool:
    return not request.gpu_models or any(same_model(wanted, group.gpu_model) for wanted in request.gpu_models)


def _seat(request: Request, offer: Offer, model: str, groups: list[NodeGroup]) -> Seat:
    free: dict[str, int] = {}
    for group in groups:
        free[group.domain] = free.get(group.domain, 0) + group.free
    total = sum(group.total for group in groups)
    return Seat(request, offer, model, free, _fill(free, request.nodes), total)


def _fill(free: Mapping[str, int], nodes: int) -> dict[str, int]:
    """Nodes to take from each domain: as few domains as can be, and of those that will do the one where the least
    room is lost; nodes whose domain is not known come last. Empty where there are not enough."""
    if sum(free.values()) < nodes:
        return {}
    taken: dict[str, int] = {}
    left = nodes
    domains = sorted(((d, n) for d, n in free.items() if d and n), key=lambda item: (-item[1], item[0]))
    while left and domains:
        fitting = [item for item in domains if item[1] >= left]
        domain, count = min(fitting, key=lambda item: (_lost(item[1], left), item)) if fitting else domains[0]
        taken[domain] = min(count, left)
        left -= taken[domain]
        domains.remove((domain, count))
    return taken | ({"": left} if left else {})


def _over(request: Request, scope: str, quota: Quota) -> str:
    """Why the quota does not let the job in; empty where it does, or does not bind it."""
    if quota.scope not in {"", scope}:
        return ""
    gpus = request.nodes * request.gpus_per_node
    for wanted, left, what in ((request.nodes, quota.nodes_left, "nodes"), (gpus, quota.gpus_left, "GPUs")):
        if left is not None and wanted > left:
            return f"{quota.name} leaves {max(0, left)} {what}, {wanted} are wanted"
    return ""


def _no_such_nodes(request: Request, groups: Iterable[NodeGroup]) -> str:
    wanted = _nodes_text(request, "node")
    found = sorted({f"{g.gpus} x {g.gpu_model or 'a GPU whose model it does not say'}" for g in groups if g.total})
    return f"no {wanted}; its nodes have {', '.join(found) or 'no GPUs'}"


def _too_few(request: Request, seat: Seat) -> str:
    if seat.total < request.nodes:
        return f"{request.nodes} {_nodes_text(request)} are wanted, it has {seat.total}"
    return f"{seat.free_nodes} of its {seat.total} {_nodes_text(request)} are free, {request.nodes} are wanted"


def _too_far(request: Request, seat: Seat) -> str:
    free = f"its free nodes are spread over {seat.domains} domains at best, at most {request.max_domains} may be used"
    return f"{free} (it does not say which nodes share a switch)" if "" in seat.taken else free


def _nodes_text(request: Request, word: str = "nodes") -> str:
    model = " or ".join(request.gpu_models) or "GPUs"
    return f"{word} with {request.gpus_per_node} {model}" if request.gpus_per_node or request.gpu_models else word


# -- how those that can are compared


def _cost(stock: Stock | None) -> float:
    return 0.0 if stock is None or stock.there else stock.seconds or 0.0


def _stock_words(stock: Stock | None) -> str:
    if stock is None:
        return "none needed"
    if stock.there:
        return f"{stock.detail} there" if stock.detail else "there"
    return f"{duration_text(float(round(_cost(stock))))} to bring {stock.detail or 'it'}"


def _checkpoint_score(seat: Seat) -> tuple[float, ...]:
    """There before not there, whatever the copy takes: a copy can fail, and costs the network of both."""
    stock = seat.offer.checkpoint
    return (float(stock is not None and not stock.there), _cost(stock))


def _lost(free: int, taken: int) -> float:
    """Nodes of room that jobs of `SIZES`, each within one domain, lose on average where `taken` of `free` go."""
    return sum(free // size * size - (free - taken) // size * size for size in SIZES) / len(SIZES)


def room_lost(seat: Seat) -> float:
    """Nodes of room that the job takes from jobs of `SIZES`, on average.

    Choosing the least is choosing the least growth of sum over k of popularity(k) * (free - usable(k)), the
    fragmentation of FGD (ATC'23) for whole nodes: both differ by the job's own size only.
    """
    return sum(_lost(seat.free[domain], taken) for domain, taken in seat.taken.items())


def is_large(request: Request) -> bool:
    return request.nodes * request.gpus_per_node >= LARGE_GPUS


def _takes_kept_room(seat: Seat) -> bool:
    """A large job waits there, and this one would keep its nodes from it."""
    room = seat.offer.room
    if room is None:
        return False
    gpus = max((group.gpus for group in room.groups), default=0)
    kept = [n for n in room.waiting if n * gpus >= LARGE_GPUS and n > seat.request.nodes]
    return bool(kept) and seat.free_nodes - seat.request.nodes < max(kept)


def _fragmentation_score(seat: Seat) -> tuple[float, ...]:
    if is_large(seat.request):
        return (-seat.free_nodes,)
    return (float(_takes_kept_room(seat)), room_lost(seat), seat.free_nodes)


def _fragmentation_words(seat: Seat) -> str:
    free = f"{seat.free_nodes} of {seat.total} nodes free"
    if is_large(seat.request):
        return free
    kept = ", takes room that is kept for a large job" if _takes_kept_room(seat) else ""
    return f"{free}, takes {room_lost(seat):.1f} nodes of room from other sizes{kept}"


def _domain_words(seat: Seat) -> str:
    if "" in seat.taken and seat.request.nodes > 1:
        return "not known which nodes share a switch"
    return f"{seat.domains} domain{'s' if seat.domains > 1 else ''}"


class Criterion(NamedTuple):
    """One thing that clusters are compared by: the lower score is the better one."""

    name: CriterionName
    score: Callable[[Seat], tuple[float | str, ...]]
    words: Callable[[Seat], str]


CRITERIA = (
    Criterion(CriterionName.CHECKPOINT, _checkpoint_score, lambda seat: _stock_words(seat.offer.checkpoint)),
    Criterion(
        CriterionName.DATASET,
        lambda seat: (_cost(seat.offer.dataset),),
        lambda seat: _stock_words(seat.offer.dataset),
    ),
    Criterion(CriterionName.SWITCHES, lambda seat: (seat.domains,), _domain_words),
    Criterion(CriterionName.FRAGMENTATION, _fragmentation_score, _fragmentation_words),
    Criterion(CriterionName.NAME, lambda seat: (seat.offer.cluster, seat.model), lambda seat: seat.offer.cluster),
)
"""The documented order; the name makes it total, so that equal clusters never take turns."""


def _key(seat: Seat) -> tuple[tuple[float | str, ...], ...]:
    return tuple(criterion.score(seat) for criterion in CRITERIA)


def _candidate(place: int, seat: Seat, seats: list[Seat]) -> Candidate:
    if place == 0:
        why = _wins(seat, seats[1:])
    else:
        lost = _differs(seats[0], seat)
        why = f"after {seats[0].offer.cluster} by {lost.name}: {_beside(lost, seat, seats[0])}"
    facts = {criterion.name: criterion.words(seat) for criterion in CRITERIA}
    return Candidate(cluster=seat.offer.cluster, rank=place + 1, why=why, facts=facts)


def _wins(seat: Seat, others: list[Seat]) -> str:
    """Compared with the next one, which is the closest."""
    free = f"{seat.request.nodes} of {seat.free_nodes} free {_nodes_text(seat.request)}"
    if not others:
        return f"{free}; no other cluster can take it"
    won = _differs(seat, others[0])
    return f"{free}; before {others[0].offer.cluster} by {won.name}: {_beside(won, seat, others[0])}"


def _differs(one: Seat, other: Seat) -> Criterion:
    return next(c for c in CRITERIA if c.score(one) != c.score(other))


def _beside(criterion: Criterion, one: Seat, other: Seat) -> str:
    if criterion.name is CriterionName.NAME:
        return "else they are equal"
    return f"{criterion.words(one)}, {other.offer.cluster} {criterion.words(other)}"


def _nowhere(out: list[Candidate]) -> str:
    if not out:
        return "there is no cluster to choose from"
    return "no cluster can take it now: " + "; ".join(f"{c.cluster}: {c.why}" for c in out)

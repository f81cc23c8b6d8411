"""Which checkpoint of a root to resume from: every candidate, newest first, with what proves or refuses it."""

from dataclasses import replace

from fleet.checkpoints.dcp import Dcp, Torchtitan
from fleet.checkpoints.deepspeed import DeepSpeed
from fleet.checkpoints.hugging_face import HuggingFace
from fleet.checkpoints.layout import Found, Known, Layout, Named, Proof, bad_step
from fleet.checkpoints.lightning import Lightning
from fleet.checkpoints.marked import Marked
from fleet.checkpoints.megatron import Megatron
from fleet.checkpoints.model import FOLDER, Candidate, Entry, Format, Judgement, Small
from fleet.checkpoints.names import shown
from fleet.checkpoints.nemo import Nemo
from fleet.checkpoints.nvrx import Nvrx
from fleet.checkpoints.orbax import Orbax
from fleet.checkpoints.receipts import check_receipt, find_receipts, prove_by_receipt
from fleet.checkpoints.tree import NotProvenError, Tree
from fleet.checkpoints.verl import Verl

LAYOUTS: tuple[Layout, ...] = (
    Megatron(),
    Verl(),
    DeepSpeed(),
    HuggingFace(),
    Torchtitan(),
    Nemo(),
    Lightning(),
    Orbax(),
    Nvrx(),
    Marked(),
    Dcp(),
)
"""The order decides nothing: a root of two layouts is a question."""
MAX_CANDIDATES = 2_000
"""Candidates of one root; more are a question, for nobody keeps so many on purpose."""
_GENERAL = (Dcp, Nemo, Lightning)
"""Their names are so general that another layout's folders can have them, too; what that one claims is not theirs."""


def judge(tree: Tree, known: Known | None = None) -> Judgement:
    """All candidates of a root.

    A root of no known layout, of two, or with more than MAX_CANDIDATES has a question for a person and nothing
    complete, unless receipts of ours prove what they list.
    """
    known = known or Known()
    notes = [f"{shown(r.path)} {r.why}; it is not looked at" for r in tree.refused[:20]]
    if len(tree.refused) > 20:
        notes.append(f"{len(tree.refused) - 20} more names are not looked at")
    found = _layouts(tree, known)
    if len(found) > 1:
        names = " and ".join(sorted(f"{one.named[0].format}" for _, one in found))
        return Judgement(
            format=None, notes=tuple(notes), question=f"two layouts in one folder ({names}): name one's own"
        )
    if not found:
        return _by_receipts_alone(tree, known, notes)
    layout, one = found[0]
    if len(one.named) > MAX_CANDIDATES:
        text = f"{len(one.named)} checkpoints in one folder, more than {MAX_CANDIDATES}: move old ones away"
        return Judgement(format=None, notes=tuple(notes), question=text)
    newest_first = sorted(one.named, key=lambda n: n.age, reverse=True)
    candidates = tuple(_candidate(tree, layout, named, known) for named in newest_first)
    best = next((c for c in candidates if c.complete), candidates[0])
    return Judgement(
        format=best.entry.format,
        candidates=candidates,
        notes=(*notes, *(shown(note, 300) for note in one.notes)),
        movable=one.movable,
    )


def _layouts(tree: Tree, known: Known) -> list[tuple[Layout, Found]]:
    found = [(layout, one) for layout in LAYOUTS if (one := layout.find(tree, known)).named]
    claimed = frozenset().union(*(one.claimed for layout, one in found if not isinstance(layout, _GENERAL)))
    kept = []
    for layout, one in found:
        named = one.named
        if isinstance(layout, _GENERAL):
            named = tuple(n for n in named if n.name.split("/")[0] not in claimed)
        if named:
            kept.append((layout, replace(one, named=named)))
        if isinstance(layout, _GENERAL):
            claimed |= one.claimed
    return kept


def _candidate(tree: Tree, layout: Layout, named: Named, known: Known) -> Candidate:
    try:
        if trouble := bad_step(named.step, known):
            raise NotProvenError(trouble)
        receipt = check_receipt(tree, named, known)
        try:
            proof = layout.prove(tree, named, known)
        except NotProvenError as error:
            if receipt.receipt is None:
                raise NotProvenError(f"{error}{f'; {receipt.note}' if receipt.note else ''}") from None
            proof = prove_by_receipt(tree, named, receipt.receipt)
        if trouble := bad_step(proof.step, known):
            raise NotProvenError(trouble)
        proof = replace(proof, notes=(*proof.notes, *([receipt.note] if receipt.note else [])))
        return _complete(named, proof, layout.trackers(named))
    except NotProvenError as error:
        entry = Entry(format=named.format, name=named.name, step=named.step)
        return Candidate(entry=entry, complete=False, reason=shown(error, 400))


def _complete(named: Named, proof: Proof, trackers: tuple[Small, ...]) -> Candidate:
    entry = Entry(
        format=proof.format or named.format,
        name=named.name,
        step=named.step if named.step is not None else proof.step,
        data=proof.data,
        markers=proof.markers,
        made=proof.made,
        trackers=trackers,
    )
    notes = tuple(shown(note, 300) for note in proof.notes)
    return Candidate(entry=entry, complete=True, reason=shown(proof.says, 400), notes=notes)


def _by_receipts_alone(tree: Tree, known: Known, notes: list[str]) -> Judgement:
    """No layout is known; what a receipt of ours lists, hash by hash, is a checkpoint all the same."""
    candidates = []
    for receipt in find_receipts(tree):
        named = Named(Format.RECEIPT, receipt.entry, receipt.step)
        try:
            candidates.append(_complete(named, prove_by_receipt(tree, named, receipt), ()))
        except NotProvenError as error:
            entry = Entry(format=Format.RECEIPT, name=receipt.entry, step=receipt.step)
            candidates.append(Candidate(entry=entry, complete=False, reason=shown(error, 400)))
    candidates.sort(key=lambda c: (c.entry.step if c.entry.step is not None else -1, c.entry.name), reverse=True)
    if candidates:
        return Judgement(format=Format.RECEIPT, candidates=tuple(candidates), notes=tuple(notes))
    names = sorted([*(f"{n}/" for n in tree.folders() if n != FOLDER), *tree.names()])
    there = ", ".join(shown(n, 40) for n in names[:6]) + (", …" if len(names) > 6 else "") if names else "nothing"
    return Judgement(
        format=None,
        notes=tuple(notes),
        question=f"no layout that is known here; it holds {there}. Wait if nothing was saved yet; else a person says "
        "which is complete",
    )

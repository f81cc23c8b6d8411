"""Values -> tables and pages for a terminal. Nothing here asks anything; colours only underline what words say."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clients import readiness
from clients.output import clean
from clients.shapes import Description, DryRun, LemonRow, OpenQuestion, PlacementPlan, RunRow, Why
from clients.tables import age, cell, grid, table
from fleet.baselines import Baseline
from fleet.faults.evidence import Evidence, Verdict
from fleet.ledger import Ledger
from fleet.people import Question
from fleet.placement import CriterionName
from fleet.report import lasting, moment
from fleet.runbooks import Lease, View

STORY_LINES = 25
"""Lines of the story on a page; the report has all of them."""
_STATUS_STYLE = {"running": "green", "completed": "dim", "failed": "red", "terminated": "red", "timed_out": "red"}


def run_table(rows: Sequence[RunRow]) -> Table:
    """`runbook list`: NAME first, AGE last."""
    made = table("NAME", "KIND", "CLUSTER", "STATUS", "STEP", "PERSON", "FAULT", "AGE")
    for row in rows:
        made.add_row(
            cell(row.id),
            cell(row.kind),
            cell(row.cluster),
            cell(row.status, _STATUS_STYLE.get(row.status, "yellow")),
            cell(row.step),
            cell("needed", "bold yellow") if row.needs_human else cell(""),
            cell(row.fault),
            cell(age(row.started_at)),
        )
    return made


def question_table(questions: Sequence[OpenQuestion]) -> Table:
    made = table("NAME", "TITLE", "PLAN", "OPTIONS", "IF NOBODY", "EXPIRES", "AGE")
    for question in questions:
        made.add_row(
            cell(question.id),
            cell(question.title),
            cell(question.plan_hash),
            cell(",".join(question.options)),
            cell(question.default),
            cell(f"in {lasting(max(0.0, question.expires_at - time.time()))}"),
            cell(age(question.asked_at)),
        )
    return made


def lemon_table(rows: Sequence[LemonRow]) -> Table:
    made = table("NAME", "NODE", "POINTS", "WHY", "STATE", "AGE")
    for row in rows:
        made.add_row(
            cell(row.subject),
            cell(f"{row.cluster}/{row.node}" if row.gpu else ""),
            cell(f"{row.score:g}"),
            cell(row.text.partition(": ")[2]),
            cell("; ".join(filter(None, ("out" if row.out else "", row.answer)))),
            cell(age(row.last_at)),
        )
    return made


# -- pages


def description(seen: Description, lines: int = STORY_LINES) -> RenderableType:
    """`runbook describe` and one frame of `runbook watch`."""
    parts: list[RenderableType] = []
    if seen.run is not None:
        parts.append(_head(seen.run, seen.view, seen.ui))
    if seen.note:
        parts.append(cell(seen.note, "yellow"))
    if seen.view is not None:
        parts += _body(seen.view, lines)
    if seen.readiness is not None:
        parts += [_section("If its cluster is lost"), readiness.page(seen.readiness)]
    if seen.remembered is not None:
        parts.append(_section("On record"))
        if seen.remembered.verdict is not None:
            parts.append(verdict_grid(seen.remembered.verdict))
        parts += [evidence_table(seen.remembered.evidence)] if seen.remembered.evidence else []
        if seen.remembered.reports:
            parts.append(cell(f"reports: {', '.join(seen.remembered.reports)} (`runbook report`)"))
    return Group(*parts)


def _head(run: RunRow, view: View | None, ui: str) -> Table:
    status = Text(run.status, style=_STATUS_STYLE.get(run.status, "yellow"))
    if run.needs_human:
        status.append("  needs a person", style="bold yellow")
    return grid(
        [
            ("runbook", Text(run.id, style="bold")),
            ("kind", run.kind),
            ("status", status),
            ("step", (view.step if view else "") or run.step),
            ("waits for", view.waits_for if view else ""),
            ("next", view.next if view else ""),
            ("result", view.result if view else ""),
            ("op", view.op if view else ""),
            ("started", f"{moment(run.started_at)} ({age(run.started_at)} ago)"),
            ("ended", moment(run.ended_at) if run.ended_at else ""),
            ("page", ui),
        ]
    )


def _body(view: View, lines: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if view.freeze is not None:
        text = f"frozen by {view.freeze.by}, {age(view.freeze.at)} ago: {view.freeze.reason}"
        parts.append(cell(text, "bold yellow"))
    if view.verdict is not None:
        parts += [_section("Verdict"), verdict_grid(view.verdict)]
    if view.question is not None:
        parts += [_section("Question"), question_page(view.question)]
        if view.outcome is not None:
            said = view.outcome
            how = "signed" if said.signed else "unsigned"
            parts.append(cell(f"answered {said.choice} by {said.by} ({how}) {said.reason}"))
    if view.ledger is not None and view.ledger.attempts:
        parts += [_section("Attempts"), attempt_table(view.ledger)]
    if view.wave is not None:
        parts += [_section("Wave"), cell(view.wave.text)]
    if view.leases:
        parts += [_section("Nodes out"), lease_table(view.leases)]
    if view.story:
        parts += [_section("Story"), *(cell(line) for line in view.story[-lines:])]
    return parts


def _section(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def attempt_table(ledger: Ledger) -> Table:
    made = table("#", "HOW", "CLUSTER", "ID", "NODES", "STEP", "SAVED", "ENDED BY", "AGE")
    for attempt in ledger.attempts:
        ended = attempt.verdict.title or attempt.verdict.rule if attempt.verdict else ""
        made.add_row(
            cell(attempt.generation),
            cell(attempt.rung.replace("_", " ")),
            cell(attempt.cluster),
            cell(attempt.native_id),
            cell(",".join(attempt.nodes)),
            cell("" if attempt.progress.step is None else attempt.progress.step),
            cell("" if attempt.progress.saved is None else attempt.progress.saved),
            cell(ended),
            cell(age(attempt.running_at or attempt.ordered_at)),
        )
    return made


def lease_table(leases: Sequence[Lease]) -> Table:
    made = table("NODE", "HOLDER", "OP", "AGE")
    for lease in leases:
        made.add_row(cell(lease.node), cell(lease.holder), cell(lease.op), cell(age(lease.since)))
    return made


def verdict_grid(verdict: Verdict) -> Table:
    culprit = verdict.culprit
    return grid(
        [
            ("what", Text(clean(verdict.title or verdict.rule), style="bold")),
            ("class", verdict.fault),
            ("rule", verdict.rule),
            ("culprit", " ".join(filter(None, (culprit.node, culprit.gpu, culprit.job)))),
            ("first repair", verdict.first_rung),
            ("confidence", f"{verdict.confidence:.2f}"),
            ("with", ", ".join(verdict.companions)),
            ("not", "; ".join(verdict.refused)),
            ("catalogue", verdict.catalogue),
        ]
    )


def evidence_table(evidence: Sequence[Evidence]) -> Table:
    made = table("SEEN", "BY", "KIND", "CODE", "GPU", "DETAIL", "AGE")
    for item in evidence:
        made.add_row(
            cell(moment(item.happened_at or item.seen_at)),
            cell(item.source),
            cell(item.kind),
            cell(item.code or ""),
            cell(item.gpu or item.pci or ""),
            cell(item.detail[:160]),
            cell(age(item.seen_at)),
        )
    return made


def baseline_table(baselines: Sequence[Baseline]) -> Table:
    made = table("FIGURE", "GPU", "NEWEST", "ITS OWN", "FLEET", "TIMES", "AGE")
    for one in baselines:
        made.add_row(
            cell(one.measure),
            cell(one.gpu or ""),
            cell(f"{one.last:g}{' low' if one.low else ''}", "yellow" if one.low else ""),
            cell(f"{one.own:g}"),
            cell("" if one.fleet is None else f"{one.fleet:g}"),
            cell(one.count),
            cell(age(one.last_at)),
        )
    return made


def question_page(question: Question) -> RenderableType:
    """Everything that a person needs before an answer: why, evidence, the plan and its hash."""
    signers = ", ".join(s.name for s in question.signers)
    rows = [
        ("asks", Text(clean(question.plan.title), style="bold")),
        ("why", question.why),
        *(("evidence" if n == 0 else "", line) for n, line in enumerate(question.evidence)),
        *(("plan" if n == 0 else "", f"{n + 1}. {step}") for n, step in enumerate(question.plan.steps)),
        ("plan hash", question.plan.digest),
        ("options", ", ".join(question.options)),
        ("if nobody answers", f"{question.default}, {_until(question.expires_at)}"),
        ("asked by", question.requester),
        ("approvers", signers or "none listed: unsigned, only the embedded server takes such an answer"),
    ]
    return grid(rows)


def _until(at: float) -> str:
    left = at - time.time()
    return f"in {lasting(left)} ({moment(at)})" if left > 0 else f"since {moment(at)}"


def why_page(why: Why) -> RenderableType:
    """The verdict as a paragraph, then what it rests on."""
    if why.verdict is None and why.result:
        head: list[RenderableType] = [Text(clean(paragraph(why)), style="bold")]
    elif why.verdict is None:
        text = f"Nothing is known against {why.cluster}/{why.node}: no verdict"
        head = [cell(text + (", but evidence is on record." if why.evidence else "."))]
    else:
        head = [Text(clean(paragraph(why)), style="bold"), verdict_grid(why.verdict)]
    if why.evidence:
        head += [_section("Evidence on record"), evidence_table(why.evidence)]
    if why.strikes:
        said = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(why.strikes.items()))
        head += [_section("Strikes of the last 28 days"), cell(said)]
    if why.baselines:
        head += [_section("Figures"), baseline_table(why.baselines)]
    return Group(*head)


def paragraph(why: Why) -> str:
    """How its repair ended, where one did; then the verdict, in two or three sentences."""
    verdict = why.verdict
    where = f"{why.cluster}/{why.node}"
    ended = f"{where}: {why.result}, {age(why.ended_at)} ago." if why.result else ""
    if verdict is None:
        return ended
    gpu = f" (GPU {verdict.culprit.gpu})" if verdict.culprit.gpu else ""
    source = "its runbook says" if why.source == "runbook" else "the last verdict on record is"
    judged = f"{verdict.fault}, {verdict.title or verdict.rule} by rule {verdict.rule}."
    text = f"{ended} Its verdict was{gpu} {judged}" if ended else f"{where}{gpu}: {source} {judged}"
    if verdict.companions:
        text += f" Seen with it: {', '.join(verdict.companions)}."
    if verdict.refused:
        text += f" Considered and refused: {'; '.join(verdict.refused)}."
    return text + (f" The runbook is at '{why.step}'." if why.step and not ended else "")


def dry_run_page(plan: DryRun) -> RenderableType:
    """What would happen, and under which rule."""
    rows: list[tuple[str, object]] = [
        ("would be", Text(plan.id, style="bold")),
        ("decision", plan.action.replace("_", " ")),
        ("why", plan.why),
        ("when", f"{plan.when} (mode {plan.mode})" if plan.mode else plan.when),
        ("without", ", ".join(plan.exclude)),
        ("delay", lasting(plan.delay) if plan.delay else ""),
        ("tries left after", "" if plan.tries_left is None else str(plan.tries_left)),
        ("policy", plan.policy_hash),
    ]
    parts: list[RenderableType] = [grid(rows)]
    if plan.steps:
        steps = table("STEP", "WHEN", "WHAT")
        for step in plan.steps:
            mode = f" ({step.mode})" if step.mode else ""
            steps.add_row(cell(step.step), cell(f"{step.when}{mode}"), cell(step.text))
        parts += [Text(""), steps]
    parts += [cell(note, "yellow") for note in plan.notes]
    parts.append(cell("dry run: nothing was changed", "dim"))
    return Group(*parts)


def placement_page(plan: PlacementPlan) -> RenderableType:
    """The order in which clusters would be tried, and why."""
    rows: list[tuple[str, object]] = [
        ("would be", Text(plan.id, style="bold")),
        ("goes to", plan.choice or "no cluster now; a person would be asked"),
        ("must run in", lasting(plan.start_within) if plan.start_within else "limits.place_timeout of the policy"),
    ]
    parts: list[RenderableType] = [grid(rows)]
    ranked = [candidate for candidate in plan.candidates if candidate.rank is not None]
    if ranked:
        made = table("CLUSTER", "CHECKPOINT", "DATASET", "SWITCHES", "ROOM", "TRY")
        for one in ranked:
            facts = (cell(one.facts.get(name, "")) for name in list(CriterionName)[:-1])
            made.add_row(cell(one.cluster), *facts, cell(one.rank, "bold green" if one.rank == 1 else ""))
        parts += [Text(""), made]
    parts += [Text(""), grid([(candidate.cluster, candidate.why) for candidate in plan.candidates])]
    return Group(*parts, cell("dry run: nothing was changed", "dim"))

"""`runbook classify`: one text judged here and now, without a server; nothing is sent anywhere."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from clients.errors import usage
from fleet.errors import InvalidInputError
from fleet.faults.classify import classify, explain
from fleet.faults.evidence import Evidence, Fact, Kind, Verdict
from fleet.faults.inputs import INPUTS, read_input, recognise
from fleet.faults.sources.flight_recorder import rank_of
from fleet.faults.tables import Tables, load_tables
from fleet.faults.texts import Origin, Parsed
from fleet.policy import Policy

TEXT_LIMIT = 256 * 1024 * 1024
"""Bytes read of one text."""


class Context(BaseModel):
    """What a text does not say itself: the file of `--context`. Every key may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster: str = ""
    node: str | None = None
    job: str | None = None
    boot: str | None = None
    """Present boot of the node: evidence of another boot is void."""
    rank: int | None = None
    now: float | None = None
    """Seconds since the epoch at which it is judged; else the time of the newest piece that has one, else the present
    time, so that an old log is judged as of its own day."""
    nodes: tuple[str, ...] = ()
    """All nodes of the job."""
    history: tuple[Evidence, ...] = ()
    """Earlier evidence of the same node or job: it counts for repeats only."""
    around: tuple[Evidence, ...] = ()
    """What was seen at the same time on other nodes, or on the nodes of the job: it tells a common cause, or who
    killed the job."""
    facts: tuple[Evidence, ...] = ()
    """Circumstances: evidence of the kind `fact` (a boot, a GPU reset, a replay elsewhere)."""

    @field_validator("facts")
    @classmethod
    def _only_facts(cls, facts: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        for fact in facts:
            if fact.kind is not Kind.FACT or fact.code not in set(Fact):
                known = ", ".join(Fact)
                raise ValueError(f"{fact.kind} {fact.code or ''} is no fact; kind `fact`, code one of {known}")
        return facts


class Classified(BaseModel):
    """The verdict, and all that it was made from."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """Kind of the text, as `INPUTS` names it."""
    verdict: Verdict
    parsed: Parsed

    def record(self) -> dict[str, Any]:
        """What `-o json` prints. The keys are a promise."""
        v = self.verdict
        used = set(v.evidence)
        return {
            "class": v.fault.value,
            "culprit": {"node": v.culprit.node, "gpu": v.culprit.gpu},
            "rule": v.rule,
            "companions": list(v.companions),
            "refused": list(v.refused),
            "confidence": v.confidence,
            "catalogue": v.catalogue,
            "evidence": [_shown(e, used=e.key in used) for e in self.parsed.evidence],
        }

    def page(self) -> str:
        """One paragraph for a tired person, then the evidence."""
        return explain(self.verdict, self.parsed.evidence)

    def notes(self) -> list[str]:
        """What a person must know beside the verdict."""
        told = [f"read as {self.kind} ({INPUTS[self.kind].what}): {self.parsed.lines} lines or records"]
        return told + [f"{count} dropped: {why}" for why, count in sorted(self.parsed.dropped.items())]


def classify_text(raw: bytes, *, kind: str | None, context: Context, policy: Policy | None, name: str) -> Classified:
    """Reads and judges. `name`: the file's name, for a Flight Recorder dump says its rank there only.

    Raises CliError (usage) for an unknown kind, a text of no known kind, and one that is too long.
    """
    if len(raw) > TEXT_LIMIT:
        raise usage(f"the text has {len(raw)} bytes, at most {TEXT_LIMIT} are read; cut it to the time of the fault")
    tables = load_tables().with_overrides(policy.overrides) if policy is not None else load_tables()
    at = context.now if context.now is not None else time.time()
    dump = (kind or recognise(raw)) == "flight_recorder"
    rank = rank_of(name) if context.rank is None and dump else context.rank
    origin = Origin(
        cluster=context.cluster,
        node=context.node,
        job=context.job,
        boot=context.boot,
        rank=rank,
        nodes=context.nodes,
        seen_at=at,
    )
    try:
        found, parsed = read_input(raw, origin, tables, kind)
    except InvalidInputError as error:
        raise usage(f"{error} (--kind KIND)") from error
    return Classified(kind=found, verdict=_judge(parsed, context, tables, at), parsed=parsed)


def _judge(parsed: Parsed, context: Context, tables: Tables, at: float) -> Verdict:
    times = [e.happened_at for e in parsed.evidence if e.happened_at is not None]
    now = context.now if context.now is not None else max(times, default=at)
    return classify(
        (*parsed.evidence, *context.facts),
        history=context.history,
        around=context.around,
        tables=tables,
        boot=context.boot,
        now=now,
    )


def read_context(file: Path | None) -> Context:
    """The context of a file; an empty one without a file. Raises CliError (usage) that names the key."""
    if file is None:
        return Context()
    try:
        return Context.model_validate_json(file.read_bytes())
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(Context.model_fields)
        raise usage(f"{file}: {where + ': ' if where else ''}{first['msg']}; keys: {known}") from error


def _shown(e: Evidence, *, used: bool) -> Mapping[str, Any]:
    """One piece: whether the verdict rests on it, and what it says."""
    told = e.model_dump(mode="json", exclude_none=True, exclude={"raw_hash", "cluster", "seen_at", "stamp"})
    return {"key": e.key, "used": used, **{key: value for key, value in told.items() if value != ""}}

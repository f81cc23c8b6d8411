"""Logs: readable lines in a terminal, JSON lines elsewhere. Each says which runbook, run, step, cluster and attempt.

One line is one event: nothing in it holds a raw newline or a control character, nothing secret. The standard
library's loggers (Temporal's SDK, its Rust core) go the same way. Activities get their words from the `LogContext`
interceptor of the worker, workflows from the SDK's own context.
"""

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import Any, TextIO

import structlog
from structlog.contextvars import bound_contextvars
from structlog.stdlib import ProcessorFormatter
from temporalio import activity, workflow
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from fleet import attributes
from fleet.redact import REDACTED, is_secret_name, redact, redact_tree

FORMAT_VARIABLE = "GPU_RUNBOOKS_LOG"
"""`text` or `json` overrides what the stream suggests."""
CLUSTER_QUEUE_PREFIX = "cluster."
_ORDER = ("workflow_id", "run_id", "step", "cluster", "attempt")
_SUBJECT_FIELDS = ("cluster", "node", "job")

Event = MutableMapping[str, Any]


def configure_logs(stream: TextIO | None = None, level: str = "INFO", format: str | None = None) -> None:  # noqa: A002
    """Sends every log line to `stream` (standard error by default). May be called again; the last call counts.

    `format` is `text` or `json`; else `$GPU_RUNBOOKS_LOG`, else text for a terminal. Colour only on a terminal, and
    never with NO_COLOR set. Raises ValueError for another format or level.
    """
    out = stream or sys.stderr
    wanted = format or os.environ.get(FORMAT_VARIABLE) or ("text" if out.isatty() else "json")
    if wanted not in {"text", "json"}:
        raise ValueError(f"{FORMAT_VARIABLE} is {wanted!r}; give text or json")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_temporal_words,
        _add_exception,
        _redact,
    ]
    structlog.configure(
        processors=[structlog.stdlib.PositionalArgumentsFormatter(), *shared, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[ProcessorFormatter.remove_processors_meta, _first_words, *_renderers(wanted, out)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These would write the same facts into the text of each message.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


def core_runtime(level: str = "WARN") -> Runtime:
    """A Temporal runtime whose Rust core logs through `logging`, and so as the rest; pass it when connecting."""
    forward = LogForwardingConfig(logger=logging.getLogger("temporalio.core"), append_target_to_name=False)
    filters = TelemetryFilter(core_level=level, other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=filters, forwarding=forward)))


class LogContext(Interceptor):
    """Worker interceptor: every line that an activity logs names its runbook, step, cluster and attempt."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _ActivityWords(next)


class _ActivityWords(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's own name
        with bound_contextvars(**_activity_words(activity.info(), input.args)):
            return await super().execute_activity(input)


def _activity_words(info: activity.Info, args: Sequence[Any]) -> dict[str, Any]:
    words: dict[str, Any] = {
        "workflow_id": info.workflow_id,
        "run_id": info.workflow_run_id,
        "step": info.activity_type,
        "attempt": info.attempt,
    }
    if info.task_queue.startswith(CLUSTER_QUEUE_PREFIX):
        words["cluster"] = info.task_queue.removeprefix(CLUSTER_QUEUE_PREFIX)
    for name in _SUBJECT_FIELDS:
        value = getattr(args[0], name, None) if args else None
        if isinstance(value, str) and value:
            words[name] = value
    return words


# -- processors


def _add_temporal_words(_logger: object, _method: str, event: Event) -> Event:
    """From the SDK's record extras, and inside a workflow from its own info; what is bound already stays."""
    event.pop("temporal_log", None)  # the Rust core's own record; its text is in the message already
    details = {**(event.pop("temporal_workflow", None) or {}), **(event.pop("temporal_activity", None) or {})}
    for ours, theirs in (
        ("workflow_id", "workflow_id"),
        ("run_id", "run_id"),
        ("run_id", "workflow_run_id"),
        ("step", "activity_type"),
        ("attempt", "attempt"),
    ):
        if theirs in details:
            event.setdefault(ours, details[theirs])
    if workflow.in_workflow():
        _add_workflow_words(event)
    return event


def _add_workflow_words(event: Event) -> None:
    info = workflow.info()
    event.setdefault("workflow_id", info.workflow_id)
    event.setdefault("run_id", info.run_id)
    event.setdefault("attempt", info.attempt)
    known = {pair.key.name: pair.value for pair in info.typed_search_attributes}
    for ours, name in (("step", attributes.STEP), ("cluster", attributes.CLUSTER), ("job", attributes.JOB)):
        if name in known:
            event.setdefault(ours, known[name])


def _add_exception(_logger: object, _method: str, event: Event) -> Event:
    """The traceback as text under `exception`, so that it is redacted and escaped as the rest."""
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["exception"] = "".join(traceback.format_exception(error)).rstrip()
    if stack := event.pop("stack_info", None):
        event["stack"] = str(stack)
    return event


def _redact(_logger: object, _method: str, event: Event) -> Event:
    for key, value in event.items():
        if key in {"_record", "_from_structlog"}:
            continue
        if is_secret_name(key):
            event[key] = REDACTED
        elif isinstance(value, str):
            event[key] = redact(value)
        elif not isinstance(value, int | float | None):
            event[key] = _redacted_object(value)
    return event


def _redacted_object(value: object) -> object:
    """Containers of plain values stay structured; any other object becomes its text, as it would in the output."""
    if isinstance(value, dict | list | tuple):
        return redact_tree(_plain(value))
    return redact(str(value))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _first_words(_logger: object, _method: str, event: Event) -> Event:
    """Who and where come first, in one order, in every line."""
    return {key: event[key] for key in _ORDER if key in event} | dict(event)


def _renderers(wanted: str, out: TextIO) -> list[Any]:
    if wanted == "json":
        return [structlog.processors.JSONRenderer(ensure_ascii=True)]  # escapes every line break there is
    colours = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return [_one_line, structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, pad_event_to=40)]


def _one_line(_logger: object, _method: str, event: Event) -> Event:
    """Control characters and line breaks as escapes, so that a node's text can neither fake a line nor steer a
    terminal."""
    if exception := event.pop("exception", None):
        event["error"] = _short(str(exception))
    return {_escape(str(key)): _escape(value) for key, value in event.items()}


def _short(exception: str) -> str:
    """Last line of a traceback and where it was raised; the whole one is in the JSON lines."""
    lines = exception.splitlines()
    places = [line.strip() for line in lines if line.startswith("  File ")]
    return lines[-1] + (f" ({places[-1]})" if places else "")


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)
    if isinstance(value, list | dict | tuple):
        return _escape(str(value))
    return value

"""Names that several floors must spell alike: workflow ids, task queues, op ids, marks in reasons and comments."""

import base64
import hashlib
import re
from collections.abc import Iterable

from fleet.model import MARK, NAME_PATTERN, JobTokens, NativeJob, label_safe

RUNBOOKS_QUEUE = "runbooks"
TOKEN_PREFIX = "gpu-runbooks.io/"  # noqa: S105 - a label prefix, not a password
EPOCH_TOKEN = f"{TOKEN_PREFIX}epoch"
"""Names the submission that made a native object, where it is not the job's first one."""

_REASON = re.compile(rf"{MARK}:([a-z2-7]{{7}})(?=[:\s]|$)")


def cluster_queue(cluster: str) -> str:
    """Task queue of the activities that touch `cluster`; its worker runs next to the cluster."""
    return f"cluster.{cluster}"


def data_queue(site: str) -> str:
    """Task queue of the activities that move data to or from `site`; its worker runs next to the site's storage."""
    return f"data.{site}"


def job_workflow_id(job: str) -> str:
    return f"job/{job}"


def node_workflow_id(cluster: str, node: str) -> str:
    return f"node/{cluster}/{node}"


def watch_workflow_id(cluster: str) -> str:
    return f"watch/{cluster}"


def guard_workflow_id(scope: str) -> str:
    """`scope` is a cluster's name or `fleet`."""
    return f"guard/{scope}"


def lease_workflow_id(cluster: str, native_id: str, restarts: int) -> str:
    """By what the ranks themselves know; a job's name they need not."""
    return f"lease/{cluster}/{native_id}/{restarts}"


LEMONS = "lemons"
"""Id of the schedule of `FindLemons`; its runs are `lemons-<time>`, for Temporal adds the time."""


PREFLIGHT = "preflight"
"""Id of the schedule of `PreflightTargets`; its runs are `preflight-<time>`, a person's `preflight/<job>`."""


REPLICAS = "replicas"
"""Id of the schedule of `ReplicateCheckpoints`; its runs are `replicas-<time>`."""


def ui_page(ui: str, namespace: str, workflow_id: str) -> str:
    """Address of a runbook in Temporal's UI at `ui` (scheme, host and port)."""
    return f"{ui}/namespaces/{namespace}/workflows/{workflow_id.replace('/', '%2F')}"


def op_id(*parts: object) -> str:
    """Seven base32 characters from what names one incarnation of a runbook (workflow id and first run id)."""
    digest = hashlib.sha256("\x1f".join(str(p) for p in parts).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:7]


def reason_text(op: str, text: str) -> str:
    """Slurm reason: the op id stands in the first 20 characters, for `sinfo -R` cuts there."""
    return f"{MARK}:{op}: {' '.join(text.split())}"


def op_of_reason(reason: str) -> str | None:
    """Op id if the reason carries our mark. A token match, not equality: Slurm appends ` : reboot issued`."""
    found = _REASON.match(reason)
    return found.group(1) if found else None


def of_slinky(reason: str) -> bool:
    """A drain that Slinky's operator set, as the mirror of its Kubernetes side; it alone undoes it."""
    return reason.startswith("slurm-operator:")


def parse_tokens(comment: str) -> JobTokens:
    """Reads `gpu-runbooks.io/supervise gpu-runbooks.io/job=NAME ...` out of a job's comment.

    The comment is the user's text: tokens stand anywhere in it, unknown ones are ignored, an illegal
    value is treated as absent (a job without a legal `supervise` is hands off).
    """
    flags: dict[str, str] = {}
    for word in comment.split():
        if word.startswith(TOKEN_PREFIX):
            key, _, value = word[len(TOKEN_PREFIX) :].partition("=")
            flags.setdefault(key, value)
    job = flags.get("job", "")
    signal = flags.get("checkpoint-signal", "").upper().removeprefix("SIG")
    checkpoint = flags.get("checkpoint", "")
    log, dumps = flags.get("log", ""), flags.get("dumps", "")
    steps, epoch = flags.get("total-steps", ""), flags.get("epoch", "")
    return JobTokens(
        supervise="supervise" in flags and flags["supervise"] in {"", "yes", "true"},
        transfer="transfer" in flags and flags["transfer"] in {"", "yes", "true"},
        job=job if re.match(NAME_PATTERN, job) else None,
        checkpoint=checkpoint if checkpoint.startswith("/") else None,
        checkpoint_signal=signal if signal in {"USR1", "USR2"} else None,
        total_steps=int(steps) if steps.isdigit() and int(steps) > 0 else None,
        generation_check=flags.get("generation-check", "") in {"yes", "true"},
        log=log if log.startswith("/") else None,
        dumps=dumps if dumps.startswith("/") else None,
        epoch=int(epoch) if re.fullmatch(r"[1-9][0-9]{0,8}", epoch) else 0,
    )


def token_words(tokens: JobTokens) -> str:
    """The opt-in words of a job's comment, as `parse_tokens` reads them; the epoch is not one of them."""
    words = {
        "supervise": "" if tokens.supervise else None,
        "transfer": "" if tokens.transfer else None,
        "job": tokens.job,
        "checkpoint": tokens.checkpoint,
        "checkpoint-signal": tokens.checkpoint_signal,
        "total-steps": tokens.total_steps,
        "generation-check": "yes" if tokens.generation_check else None,
        "log": tokens.log,
        "dumps": tokens.dumps,
    }
    return " ".join(
        f"{TOKEN_PREFIX}{key}" + (f"={value}" if value != "" else "")
        for key, value in words.items()
        if value is not None
    )


def with_epoch(comment: str, epoch: int) -> str:
    """The comment with the token of that submission as its only one; 0 has none, and leaves other text as it is."""
    if EPOCH_TOKEN in comment:
        comment = " ".join(w for w in comment.split() if w.partition("=")[0] != EPOCH_TOKEN)
    return " ".join(filter(None, (comment, f"{EPOCH_TOKEN}={epoch}" if epoch else "")))


def fleet_name(job: NativeJob) -> str:
    """The job's fleet-unique name: the declared one, else made from home cluster, name and a hash."""
    if job.tokens.job:
        return job.tokens.job
    if job.key:
        return label_safe(job.key)
    tail = op_id(job.cluster, job.native_id, f"{job.submitted_at:.0f}")
    return f"{job.cluster}.{label_safe(job.name)[:120]}.{tail}"


def newest_submissions(jobs: Iterable[NativeJob]) -> tuple[NativeJob, ...]:
    """Those that no later submission of the same fleet name stands beside. That one is the job; an older one is what
    is left of it, whatever its phase."""
    named = [(fleet_name(job), job) for job in jobs]
    newest: dict[str, int] = {}
    for name, job in named:
        newest[name] = max(newest.get(name, 0), job.tokens.epoch)
    return tuple(job for name, job in named if job.tokens.epoch == newest[name])

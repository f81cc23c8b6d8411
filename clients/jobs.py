"""Jobs: submitting one, finding the one that a person means, and ordering a move."""

import re
import secrets
import shlex
import time
from pathlib import Path
from typing import NamedTuple

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import api
from clients import runs, talk
from clients.ask_cluster import read, read_each
from clients.errors import CliError, usage
from clients.fleet_file import checked_cluster, known_clusters
from clients.names import name
from clients.shapes import Started
from fleet.decision import Action
from fleet.identity import (
    RUNBOOKS_QUEUE,
    fleet_name,
    job_workflow_id,
    newest_submissions,
    op_id,
    parse_tokens,
    token_words,
)
from fleet.ledger import Ledger
from fleet.model import JobTokens, NativeJob, label_safe
from fleet.orders import JobSpec
from fleet.placing import PlaceWish
from fleet.policy import Policy
from fleet.redact import redact
from fleet.runbooks import FINGERPRINT_MEMO, Accepted, Order, Runbook, SuperviseInput, Update

SCRIPT_LIMIT = 512 * 1024
"""Bytes of a batch script: it travels in one Temporal payload (warning at 512 KB, end at 2 MB)."""

ORDER_VALID = 120.0
"""Seconds in which an order must be taken; some more than the command waits, and than two clocks differ."""


class JobRef(NamedTuple):
    """A job that a person named: by its running runbook, or as its cluster shows it."""

    job: str
    cluster: str
    native: NativeJob | None
    """As found in the cluster; None when a running runbook was found by name and the cluster was not asked."""
    handle: runs.Handle | None
    """Its runbook while one runs."""


# -- submitting


def read_script(path: Path) -> str:
    """The batch script or manifest. Raises CliError (usage) for what no scheduler takes and for secrets (law 14)."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > SCRIPT_LIMIT:
        raise usage(f"{path} has {len(raw)} bytes; a batch script of at most {SCRIPT_LIMIT} is taken")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise usage(f"{path} is no UTF-8 text; give the batch script") from error
    manifest = re.search(r"^apiVersion:", text, re.MULTILINE)
    if not (text.startswith("#!") or manifest) or "\x00" in text:
        raise usage(
            f"{path} does not begin with `#!`; a batch script needs its interpreter there, a Kubernetes manifest its "
            "apiVersion"
        )
    safe = redact(text)
    if safe != text:
        pairs = zip(text.splitlines(), safe.splitlines(), strict=False)
        line = next((number for number, (left, right) in enumerate(pairs, 1) if left != right), 1)
        raise usage(
            f"{path}:{line} looks like a secret; a workflow's history keeps what is submitted. "
            "Read it from a file or the environment in the script, or submit with sbatch and opt in by the comment"
        )
    return text


def is_manifest(script: str) -> bool:
    """A Kubernetes manifest, not a batch script."""
    return not script.startswith("#!")


def check_language(cluster: str, kind: str, spec: JobSpec) -> None:
    """Raises CliError (usage) for a script that this kind of cluster does not read, or options that it has not."""
    if kind == "kubernetes" and not is_manifest(spec.script):
        raise usage(f"{cluster} takes a manifest, such as a batch/v1 Job; this is a batch script")
    if kind == "slurm" and is_manifest(spec.script):
        raise usage(f"{cluster} takes a batch script; this is a Kubernetes manifest")
    if is_manifest(spec.script) and (spec.options or spec.user):
        raise usage("--option and --user are a batch scheduler's words; write it into the manifest")


def comment_of(tokens: JobTokens) -> str:
    """The opt-in words of a job's comment. Raises CliError (usage) for a value that would not be read back."""
    comment = token_words(tokens)
    if parse_tokens(comment) != tokens:
        raise usage(
            "paths must be absolute and without spaces, the checkpoint signal USR1 or USR2, total steps above 0"
        )
    return comment


def script_comment(script: str) -> str:
    """The comment that a batch script gives itself (`#SBATCH --comment=...`). What is submitted with it says more and
    comes first, so its words win; without this they would replace the script's own. Raises CliError (usage)."""
    found = ""
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise usage(f"{line!r}: {error}") from error
            for word, value in zip(words, [*words[1:], ""], strict=True):
                if word == "--comment" or word.startswith("--comment="):
                    found = value if word == "--comment" else word.removeprefix("--comment=")
    return found


def new_job_name(script_name: str, script: str) -> str:
    """From the script's name and a hash of it and the moment: two submits are two jobs."""
    return f"{label_safe(script_name)[:60]}-{op_id(script, time.time_ns(), secrets.token_hex(4))}"


async def submit(client: Client, cluster: str, spec: JobSpec, by: str) -> Started:
    """Starts the job's runbook, which submits it. Raises CliError when the name is taken."""
    started = SuperviseInput(job=spec.job, cluster=cluster, spec=spec, by=by)
    return await _start(client, started, spec.name, f"on {cluster}", f"{spec.job} goes to {cluster}")


async def submit_anywhere(client: Client, wish: PlaceWish, by: str) -> Started:
    """Starts the job's runbook, which finds a cluster for it. Raises CliError when the name is taken."""
    started = SuperviseInput(job=wish.job, cluster="", wish=wish, by=by)
    text = f"{wish.job} goes to the cluster that fits best; `runbook describe {wish.job}` says which and why"
    return await _start(client, started, wish.name, f"on any cluster with {wish.request.nodes} nodes", text)


async def _start(client: Client, inp: SuperviseInput, shown: str, where: str, text: str) -> Started:
    identity = job_workflow_id(inp.job)
    try:
        await client.start_workflow(
            Runbook.SUPERVISE,
            inp,
            id=identity,
            task_queue=RUNBOOKS_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            search_attributes=talk.search_attributes(cluster=inp.cluster, job=inp.job),
            static_summary=f"{shown} {where}, submitted by {inp.by}"[:180],
        )
    except WorkflowAlreadyStartedError as error:
        found = await runs.find(client, identity)
        state = "is under way" if found and found.row.status == "running" else "has been used before"
        raise CliError(
            f"the job name {inp.job} {state}; a name is given once: see `runbook describe {inp.job}`, "
            "or give another --job"
        ) from error
    return Started(id=identity, state="started", text=text, ui=talk.link(client, identity))


# -- finding


async def find_job(client: Client, text: str, policy: Policy | None) -> JobRef:
    """A fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME.

    Raises CliError: unknown (usage), or not unique.
    """
    where, slash, word = text.partition("/")
    if where == "job" or not slash:
        return await _by_fleet_name(client, name(word or text, "job"), policy)
    cluster = await checked_cluster(client, where, policy)
    found = await read(client, api.FIND_JOB, api.FindJob(cluster=cluster, job=native_word(word)), cluster)
    return await only_one(client, text, [(cluster, j) for j in found.jobs])


def native_word(word: str) -> str:
    """A native id or a user's own name: array tasks have brackets, names may have anything printable."""
    if not word or len(word) > 200 or not word.isprintable():
        raise usage(
            f"{word!r} is no job: give a fleet name, CLUSTER/NATIVEID, CLUSTER/NAME or CLUSTER/NAMESPACE/NAME"
        )
    return word


async def _by_fleet_name(client: Client, job: str, policy: Policy | None) -> JobRef:
    found = await runs.find(client, job_workflow_id(job))
    if found is not None and found.row.status == "running":
        return JobRef(job, found.row.cluster, None, found.handle)
    clusters = await known_clusters(client, policy)
    if not clusters:
        raise usage(f"no runbook job/{job} runs, and no cluster is known to look for it: write CLUSTER/{job}")
    answers, failed = await read_each(client, api.FIND_JOB, {c: api.FindJob(cluster=c, job=job) for c in clusters})
    hits = [(cluster, hit) for cluster, answer in answers.items() for hit in answer.jobs]
    newest = newest_submissions(hit.job for _, hit in hits)
    hits = [(cluster, hit) for cluster, hit in hits if hit.job in newest]
    if failed and not hits:
        raise CliError(f"{job} was not found, and not every cluster could be asked: {'; '.join(failed.values())}")
    return await only_one(client, job, hits)


async def only_one(client: Client, text: str, hits: list[tuple[str, api.JobOn]]) -> JobRef:
    """The job among what clusters found. Raises CliError (usage) for none, and with their ids for several."""
    if not hits:
        raise usage(f"no job {text!r}; `runbook list --kind job` shows the supervised ones")
    if len(hits) > 1:
        rows = "; ".join(f"{c}/{h.job.native_id} ({h.job.name}, {h.job.phase})" for c, h in hits[:10])
        raise usage(f"{text!r} is {len(hits)} jobs, choose one by its id: {rows}")
    cluster, hit = hits[0]
    job = hit.name or fleet_name(hit.job)
    return JobRef(job, cluster, hit.job, await runs.running(client, job_workflow_id(job)))


async def native_of(client: Client, ref: JobRef) -> tuple[NativeJob, Ledger | None]:
    """The job live, and its ledger where a runbook keeps one."""
    ledger = None
    if ref.handle is not None:
        view, note = await talk.view_of(ref.handle)
        if view is None:
            raise CliError(note)
        ledger = view.ledger
    if ref.native is not None:
        return ref.native, ledger
    if ledger is None or ledger.last is None:
        found = await read(client, api.FIND_JOB, api.FindJob(cluster=ref.cluster, job=ref.job), ref.cluster)
        return _single(ref, [hit.job for hit in found.jobs]), ledger
    last = ledger.last
    native = await read(client, api.READ_JOB, api.OnJob(cluster=last.cluster, native_id=last.native_id), last.cluster)
    return native, ledger


def _single(ref: JobRef, found: list[NativeJob]) -> NativeJob:
    if len(found) != 1:
        raise CliError(f"{ref.job} is not in {ref.cluster} now; its runbook may still be submitting it")
    return found[0]


# -- ordering


def refuse_ended(ref: JobRef, native: NativeJob) -> None:
    """Raises CliError for a job that no order can move any more."""
    if native.phase.ended:
        raise CliError(f"{ref.job} has ended ({native.phase}); there is nothing to move. Submit it again")


class Wanted(NamedTuple):
    """A person's order for a job."""

    action: Action
    by: str
    reason: str
    exclude: tuple[str, ...] = ()
    to: str = ""
    """Cluster of a transfer; empty: any."""


async def order(client: Client, ref: JobRef, want: Wanted) -> Started:
    """A move of a job, through its runbook; a job without one is adopted, the caller's word is the consent.

    Raises Refused with the id of what is under way already.
    """
    identity = job_workflow_id(ref.job)
    wish = Order(
        want=want.action,
        by=want.by,
        reason=want.reason,
        exclude=want.exclude,
        to=want.to,
        valid_until=time.time() + ORDER_VALID,
    )
    key = f"order-{secrets.token_hex(8)}"
    if ref.handle is not None:
        accepted = await talk.update(ref.handle, Update.ORDER, wish, Accepted, identity=key)
    else:
        native = ref.native
        if native is None:
            raise CliError(f"{ref.job} is not in {ref.cluster} now")
        refuse_ended(ref, native)
        accepted = await talk.update_with_start(
            client,
            Update.ORDER,
            wish,
            Accepted,
            identity=key,
            runbook=Runbook.SUPERVISE,
            workflow_id=identity,
            start=SuperviseInput(
                job=ref.job,
                cluster=ref.cluster,
                native_id=native.native_id,
                fingerprint=native.fingerprint,
                by=want.by,
            ),
            attributes=talk.search_attributes(cluster=ref.cluster, job=ref.job),
            summary=f"{ref.job} on {ref.cluster}, adopted by {want.by}",
            memo={FINGERPRINT_MEMO: native.fingerprint},
        )
    return Started(id=identity, state="ordered", text=accepted.text, ui=talk.link(client, identity))

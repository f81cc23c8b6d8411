"""`runbook submit JOB.yaml`: reads the file and its templates, starts the job's runbook, or prints the choice."""

from pathlib import Path

from temporalio.client import Client

from activities import api, place_api
from clients import jobs, stocks
from clients.ask_cluster import read, read_each
from clients.errors import usage
from clients.fleet_file import known_clusters
from clients.names import name as checked_name
from clients.shapes import PlacementPlan
from fleet.errors import InvalidInputError
from fleet.identity import job_workflow_id
from fleet.job_file import JobFile, Template, parse_job, wish_of
from fleet.model import JobTokens, label_safe
from fleet.placement import Placement, place
from fleet.placing import PlaceWish
from fleet.policy import Policy
from fleet.stock import spec_at

SUFFIXES = frozenset({".yaml", ".yml"})


def read_job(path: Path, job: str | None = None) -> PlaceWish:
    """The job of the file; `job` is its fleet name, over the file's own. Raises CliError (usage) or InvalidInputError
    with file, line and what is wrong; the templates are read beside the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {error}") from error
    found = parse_job(text, str(path))
    templates: dict[str, Template] = {kind: _template(path, kind, file) for kind, file in found.templates.items()}
    batch = next((t.text for kind, t in sorted(templates.items()) if kind != "kubernetes"), "")
    fleet_name = checked_name(job or found.job or jobs.new_job_name(path.stem, text), "job")
    comment = " ".join(filter(None, (jobs.comment_of(_tokens(found, fleet_name)), jobs.script_comment(batch))))
    return wish_of(
        found,
        templates,
        job=fleet_name,
        name=found.name or label_safe(path.stem),
        comment=comment,
        workdir=str(Path.cwd()),
    )


def _template(path: Path, kind: str, file: str) -> Template:
    """Read as any script that is submitted: no secrets, no binary."""
    where = path.parent / file
    text = jobs.read_script(where)
    if (kind == "kubernetes") != jobs.is_manifest(text):
        takes = "a manifest" if kind == "kubernetes" else "a batch script"
        raise InvalidInputError(f"{where}:1: {kind} takes {takes}")
    return Template(str(where), text)


def _tokens(found: JobFile, job: str) -> JobTokens:
    return JobTokens(
        supervise=True,
        transfer=found.transfer,
        job=job,
        checkpoint=found.checkpoint,
        checkpoint_signal=found.checkpoint_signal,
        total_steps=found.total_steps,
        generation_check=found.generation_check,
        log=found.log,
    )


async def check_clusters(client: Client, wish: PlaceWish, found: Policy | None) -> None:
    """Raises CliError (usage) where the file names a cluster that is none of the fleet's."""
    known = await known_clusters(client, found)
    strange = sorted({*wish.clusters, *(wish.dataset_on or ())} - set(known))
    if strange and known:
        raise usage(f"the job file names {', '.join(strange)}, which the fleet has not; it has {', '.join(known)}")


async def plan(client: Client, wish: PlaceWish) -> PlacementPlan:
    """Asks every cluster for its room and, where the job could go, for a trial; chooses by the runbook's own code."""
    told = await read(client, place_api.LIST_CLUSTERS, api.Nothing())
    kinds = told.kinds
    asked = [c for c in sorted(kinds) if not wish.stays_away(c, kinds[c])]
    rooms, unread = await read_each(client, place_api.READ_ROOM, {c: api.PolicyIn(cluster=c) for c in asked})

    state = await stocks.seen(client, wish, tuple(asked), told.streams)

    def offered(lacks: dict[str, tuple[str, ...]]) -> Placement:
        offers = [
            wish.offer(
                c,
                kinds[c],
                rooms.get(c),
                unreadable=unread.get(c, ""),
                lacks=(*lacks.get(c, ()), *state.lacks(c)),
                checkpoint=state.checkpoint.stocks.get(c),
                dataset=state.dataset.stocks.get(c),
            )
            for c in sorted(kinds)
        ]
        return place(wish.request, offers)

    first = offered({})
    trials, untried = await read_each(
        client,
        place_api.TRY_SUBMIT,
        {c: api.Submit(cluster=c, spec=spec_at(wish, c, kinds[c], state.roots.get(c))) for c in first.order},
    )
    refused = {c: tuple(f"its trial refuses the job: {line}" for line in t.refuses) for c, t in trials.items()}
    failed = {c: (f"the trial did not succeed: {why}",) for c, why in untried.items()}
    found = offered(refused | failed)
    return PlacementPlan(
        id=job_workflow_id(wish.job),
        job=wish.job,
        choice=found.choice,
        why=found.why,
        candidates=found.candidates,
        start_within=wish.start_within,
    )

"""A job by what a person calls it, asked for at the clusters themselves."""

from activities.backends.port import ClusterBackend
from clients.errors import usage
from fleet.errors import FleetError
from fleet.identity import fleet_name, newest_submissions
from fleet.model import NativeJob
from fleet.policy import Policy


def parts(text: str, policy: Policy) -> tuple[str | None, str]:
    """Cluster (None where the text names none) and name. Raises NotFoundError for an unknown cluster."""
    text = text.removeprefix("job/")
    cluster, slash, name = text.partition("/")
    if not slash:
        return None, text
    policy.cluster(cluster)
    return cluster, name


async def found(name: str, backends: dict[str, ClusterBackend]) -> tuple[ClusterBackend, NativeJob]:
    """The one job of that name, its newest submission; a live one goes before ended ones. Raises CliError (usage) for
    none or several."""
    failed: list[str] = []
    seen: list[tuple[ClusterBackend, NativeJob]] = []
    for cluster, backend in backends.items():
        try:
            seen += [(backend, job) for job in await backend.jobs(0.0)]
        except FleetError as error:
            failed.append(f"{cluster} could not be asked: {error}")
    newest = frozenset(newest_submissions(job for _, job in seen))
    current = [pair for pair in seen if pair[1] in newest]
    for among, same in (
        (current, lambda j: fleet_name(j) == name),
        (seen, lambda j: name in {j.native_id, j.native_id.partition("/")[2]}),
        (current, lambda j: j.name == name),
    ):
        matches = [(backend, job) for backend, job in among if same(job)]
        live = [pair for pair in matches if not pair[1].phase.ended] or matches
        if len(live) == 1:
            return live[0]
        if live:
            several = ", ".join(f"{job.cluster}/{job.native_id}" for _, job in live)
            raise usage(f"several jobs are called {name!r}: give one of {several}")
    asked = f"none in {', '.join(backends)}"
    raise usage("; ".join([f"no job {name!r}: {asked}", *failed]))

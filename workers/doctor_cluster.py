"""One cluster, asked directly through its adapter from where the doctor runs, not through Temporal."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import TypeVar

from activities import api
from activities.backends.factory import make_backend
from activities.backends.port import ClusterBackend, RightsControl
from activities.backends.power import Power
from activities.backends.slurm.backend import SlurmBackend
from activities.backends.slurm.pyslurm_reads import ChosenReads, PyslurmReads
from activities.backends.slurm.reads import seconds_of
from activities.backends.slurm.settings import SlurmSettings
from fleet.errors import FleetError, TemporaryError
from fleet.model import NodeState
from fleet.policy import Policy, Step, StepMode
from workers.doctor_checks import Area, Check, Grade

T = TypeVar("T")
LIMIT = 45.0
"""Seconds for one look: a controller that does not answer costs its MessageTimeout, a power hook up to a minute."""
_ACCOUNTS = "the account `repair` of deploy/kubernetes/rbac.yaml"
RETRY_WINDOW = api.SUBMIT_JOB.budget.total_seconds()
"""Seconds: how long after a lost answer a submit still looks for the job that it may have made."""


async def look_at_clusters(policy: Policy, folder: Path) -> tuple[Check, ...]:
    """All of them at once: one that hangs does not delay the others."""
    found = await asyncio.gather(*(look_at_cluster(name, policy, folder) for name in policy.clusters))
    return tuple(check for checks in found for check in checks)


async def look_at_cluster(name: str, policy: Policy, folder: Path) -> tuple[Check, ...]:
    """The probe first: when it fails, nothing else of the cluster is believed."""
    area = Area(name)
    backend = make_backend(name, policy, folder)
    try:
        probed = await area.tried("probe", lambda: _within(probe(area, backend)))
        if probed[0].grade != "ok":
            todo = "the worker of this cluster meets the same, unless it runs elsewhere; correct it there"
            told = probed[0].model_copy(update={"todo": probed[0].todo or todo})
            return (told, *await _lacking(area, backend, policy))
        found = [*probed, *await area.tried("nodes", lambda: _within(nodes(area, backend)))]
        if isinstance(backend, RightsControl):
            found += await area.tried("rights", lambda: _within(rights(area, backend, policy)))
        if isinstance(backend, SlurmBackend):
            found += await area.tried("settings", lambda: _within(slurm_settings(area, backend)))
            found += await area.tried("transport", lambda: _within(transport(area, backend)))
            found.append(check_program(area, backend.settings))
        power = getattr(backend, "power", None)
        if isinstance(power, Power):
            found += await area.tried("power hook", lambda: _within(power_hook(area, power, backend)))
        return tuple(found)
    finally:
        await backend.close()


async def _within(look: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(LIMIT):
            return await look
    except TimeoutError as error:
        raise TemporaryError(f"no answer within {LIMIT:.0f} s") from error


async def probe(area: Area, backend: ClusterBackend) -> Check:
    facts = await backend.probe()
    text = (
        f"{facts.kind} {facts.version}: a lost node is noticed after {facts.node_down_after:.0f} s, a stop takes "
        f"up to {facts.stop_takes:.0f} s, its own requeue waits {facts.requeue_delay:.0f} s"
    )
    return area.ok("probe", text)


async def nodes(area: Area, backend: ClusterBackend) -> Check:
    seen = await backend.nodes(0.0)
    ours = [facts.node for facts in seen if facts.isolated_by_us]
    silent = [facts.node for facts in seen if not facts.responding]
    up = sum(facts.state is NodeState.UP for facts in seen)
    adopted = sum(job.adopted and not job.phase.ended for job in await backend.jobs(0.0))
    text = (
        f"{len(seen)} nodes, {up} up, {len(silent)} silent; ours: {adopted} adopted jobs, {len(ours)} isolated nodes"
    )
    if not up:
        return area.fail("nodes", text, "no node can take work; look at the cluster itself")
    detail = f" ({', '.join(ours + [n for n in silent if n not in ours])[:200]})" if ours or silent else ""
    return area.ok("nodes", text + detail)


async def rights(area: Area, backend: RightsControl, policy: Policy) -> tuple[Check, ...]:
    """Each right that the account lacks, by its name. One that may only look was given no other on purpose: what it
    cannot do is said, and is no failure."""
    missing = await backend.missing_rights()
    if not missing.rights:
        return (area.ok("rights", "the account may do all that runbooks need"),)
    if missing.observes:
        text = f"the account may only observe: {'; '.join(dict.fromkeys(missing.rights.values()))}"
        if all(policy.mode(step) is StepMode.OBSERVE for step in Step):
            return (area.ok("rights", text),)
        todo = f"enough to look; a worker needs {_ACCOUNTS}, or every step of fleet.yaml in the mode `observe`"
        return (area.warn("rights", text, todo),)
    return tuple(area.fail("rights", f"{right}: {why}", _ACCOUNTS) for right, why in missing.rights.items())


async def _lacking(area: Area, backend: ClusterBackend, policy: Policy) -> tuple[Check, ...]:
    """Rights that may be why a probe failed. A cluster that cannot be asked for them adds nothing to the probe."""
    if not isinstance(backend, RightsControl):
        return ()
    try:
        found = await _within(rights(area, backend, policy))
    except FleetError:
        return ()
    return tuple(check for check in found if check.grade is Grade.FAIL)


# -- Slurm


async def slurm_settings(area: Area, backend: SlurmBackend) -> tuple[Check, ...]:
    """The controller's own values that decide what we can do."""
    return judge_settings(area, await backend.view.reads.config(), has_power=backend.has_power)


def judge_settings(area: Area, config: Mapping[str, str], *, has_power: bool) -> tuple[Check, ...]:
    """RebootProgram, JobRequeue, SlurmdTimeout and MinJobAge of `scontrol show config`."""
    return (
        _reboot(area, config.get("RebootProgram", "(null)"), has_power),
        _requeue(area, config.get("JobRequeue", "1")),
        _timeout(area, seconds_of(config, "SlurmdTimeout", 300)),
        _job_age(area, seconds_of(config, "MinJobAge", 300)),
    )


def _reboot(area: Area, program: str, has_power: bool) -> Check:
    if program not in {"(null)", ""}:
        return area.ok("RebootProgram", program)
    if has_power:
        return area.warn("RebootProgram", "none: nodes are rebooted by the power hook only")
    return area.warn(
        "RebootProgram",
        "none, and no power hook: every reboot is a person's",
        "RebootProgram in slurm.conf, or `power`",
    )


def _requeue(area: Area, value: str) -> Check:
    if value != "0":
        return area.ok("JobRequeue", value)
    return area.warn(
        "JobRequeue", "0: only jobs submitted with --requeue can be supervised", "JobRequeue=1 in slurm.conf"
    )


def _timeout(area: Area, seconds: float) -> Check:
    if seconds > 0:
        return area.ok("SlurmdTimeout", f"{seconds:.0f} s until Slurm gives up a node that does not answer")
    return area.warn(
        "SlurmdTimeout", "0: Slurm never gives up a node; only other evidence starts a recovery", "SlurmdTimeout=300"
    )


def _job_age(area: Area, seconds: float) -> Check:
    if seconds == 0 or seconds >= RETRY_WINDOW:
        return area.ok("MinJobAge", f"{seconds:.0f} s")
    return area.warn(
        "MinJobAge",
        f"{seconds:.0f} s: a job that ends at once is forgotten before a submit whose answer was lost stops looking "
        f"for it ({RETRY_WINDOW:.0f} s), and would be submitted twice",
        f"MinJobAge={RETRY_WINDOW:.0f} in slurm.conf",
    )


async def transport(area: Area, backend: SlurmBackend) -> Check:
    """Who reads, chosen as the worker chooses."""
    await backend.nodes(0.0)
    chosen = backend.view.reads
    reads = chosen.reads if isinstance(chosen, ChosenReads) else chosen
    words = "pyslurm reads, the commands write" if isinstance(reads, PyslurmReads) else "the commands read and write"
    return area.ok("transport", f"{words} (transport: {backend.settings.transport}, {backend.settings.bin_dir})")


async def power_hook(area: Area, power: Power, backend: ClusterBackend) -> Check:
    """Its programs are there, and it says on or off for one node. Nothing is switched."""
    hooks = power.hooks
    if hooks.status is None or hooks.off is None or hooks.on is None:
        return area.warn(
            "power hook",
            "none: a node that does not answer needs a named person's word that it is off",
            "`power` in fleet.yaml",
        )
    for words in (hooks.off, hooks.on, hooks.status):
        if shutil.which(words[0]) is None:
            return area.fail(
                "power hook", f"{words[0]} is no program on this machine", "correct `power` in fleet.yaml"
            )
    seen = await backend.nodes(60.0)
    if not seen:
        return area.warn("power hook", "the cluster has no node to ask about")
    off = await power.is_off(seen[0].node)
    return area.ok("power hook", f"{seen[0].node} reads {'off' if off else 'on'}")


def check_program(area: Area, settings: SlurmSettings) -> Check:
    """It runs on the nodes; seen from here it can only be there or not."""
    if settings.check is None:
        return area.warn(
            "check program",
            "none: after a repair only Slurm's own count of GPUs is compared",
            "`check` in fleet.yaml",
        )
    gone = [w for w in settings.check if w.startswith("/") and not os.access(w, os.R_OK)]
    if gone:
        return area.warn("check program", f"{', '.join(gone)} not on this machine", "see that it is on every node")
    return area.ok("check program", " ".join(settings.check))

"""How a job ended, by its cluster's record -> evidence."""

import signal

from fleet.faults.evidence import Evidence, Kind, Source
from fleet.faults.tables import plain
from fleet.faults.texts import digest
from fleet.model import NativeJob, Phase

OUT_OF_MEMORY_STATUS = 125
"""Slurm writes `0:125` for a step that its memory limit killed (measured; trouble case PC-S04)."""

_PHASES = {Phase.NODE_LOST: "NODE_FAIL", Phase.TIMED_OUT: "TIMEOUT", Phase.CANCELLED: "CANCELLED"}
_FAILED_LAUNCH = {plain("launch failed requeued held"), plain("JobLaunchFailure")}
_SAYS_LITTLE = {"", "none", "nonzeroexitcode", "raisedsignal", "prolog"}


def exit_evidence(native: NativeJob, job: str, seen_at: float) -> tuple[Evidence, ...]:
    """The end of one attempt: one piece for the scheduler's reason, one for the exit code or signal.

    Empty while it runs or waits (unless a failed launch holds it), when it ended well, and when the controller does
    not know it: absent is unknown, never failed.
    """
    codes: list[str] = []
    if native.phase in _PHASES:
        codes.append(_PHASES[native.phase])
    reason = native.reason.split("(")[0].strip()
    wanted = native.phase is Phase.FAILED or plain(reason) in _FAILED_LAUNCH
    if wanted and plain(reason.split(":")[0]) not in _SAYS_LITTLE:
        codes.append(reason)
    if native.phase is Phase.FAILED:
        codes.append(_exit_code(native))
    return tuple(_one(native, job, seen_at, code) for code in dict.fromkeys(code for code in codes if code))


def _exit_code(native: NativeJob) -> str:
    if native.exit_signal == OUT_OF_MEMORY_STATUS:
        return "OUT_OF_MEMORY"
    if native.exit_signal:
        try:
            return signal.Signals(native.exit_signal).name
        except ValueError:
            return str(128 + native.exit_signal)
    if native.exit_code is None:
        return "FAILED"
    return "FAILED" if native.exit_code == 0 else str(native.exit_code)


def _one(native: NativeJob, job: str, seen_at: float, code: str) -> Evidence:
    status = f"exit {native.exit_code}:{native.exit_signal}"
    where = ",".join(native.nodes) or "no node"
    return Evidence(
        source=Source.SCHEDULER,
        kind=Kind.JOB_EXIT,
        cluster=native.cluster,
        node=native.nodes[0] if len(native.nodes) == 1 else None,
        job=job,
        code=code,
        seen_at=seen_at,
        detail=f"{native.phase} {native.reason} {status} on {where}, restart {native.restarts}"[:400],
        raw_hash=digest(f"{native.fingerprint}|{native.restarts}|{code}"),
    )

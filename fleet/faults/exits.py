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
_SAYS_LITTLE = {"", "none", "nonzeroexitcode", "raisedsignal", "prolog", "error"}


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
        codes.append(end_code(native.exit_code, native.exit_signal))
    return tuple(_one(native, job, seen_at, code) for code in dict.fromkeys(code for code in codes if code))


def end_code(exit_code: int | None, exit_signal: int | None) -> str:
    """`OUT_OF_MEMORY`, a signal's name, an exit code as text, or `FAILED` where the record says no more."""
    if exit_signal == OUT_OF_MEMORY_STATUS:
        return "OUT_OF_MEMORY"
    if exit_signal:
        try:
            return signal.Signals(exit_signal).name
        except ValueError:
            return str(128 + exit_signal)
    if exit_code is None:
        return "FAILED"
    return "FAILED" if exit_code == 0 else str(exit_code)


def _one(native: NativeJob, job: str, seen_at: float, code: str) -> Evidence:
    status = f"exit {native.exit_code}:{native.exit_signal}"
    where = ",".join(native.nodes) or "no node"
    return Evidence(
        source=Source.SCHEDULER,
        kind=Kind.JOB_EXIT,
        cluster=native.cluster,
        node=native.nodes[0] if len(native.nodes) == 1 else None,
        nodes=tuple(sorted(native.nodes)),
        job=job,
        code=code,
        seen_at=seen_at,
        detail=f"{native.phase} {native.reason} {status} on {where}, restart {native.restarts}"[:400],
        raw_hash=digest(f"{native.fingerprint}|{native.restarts}|{code}"),
    )

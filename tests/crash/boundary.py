"""Step boundaries of a recovery, the faults that hit there, and the worker's interceptor that lets them."""

import os
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from temporalio import activity, workflow
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from fleet.model import Value
from fleet.runbooks import Runbook

WORKFLOW = "the runbook"
"""As a step: its first and its last workflow task."""
STEPS = (
    WORKFLOW,
    "request_checkpoint",
    "stop_job",
    "prove_stopped",
    "tell_node",
    "start_attempt",
    "wait_running",
    "wait_step",
)
"""Every step of an undisturbed failover, in order; a test compares them with its history."""
WRITES = ("request_checkpoint", "stop", "start_attempt", "settle_attempt")
"""The writes of the port that these steps make, each in the middle of its step."""
CALL = "crash_point"
"""Name of the function that the workflow side of the interceptor calls outside its sandbox."""


class Fault(StrEnum):
    """What happens once, at one boundary."""

    WORKER_KILLED = "worker killed"
    SERVER_KILLED = "server killed"
    WORKER_FROZEN = "worker frozen"
    """SIGSTOP beside a second worker; it goes on 8 s later, when others have done its step."""
    WORKER_SLEPT = "worker slept"
    """The same, but it goes on only when the recovery is over: the latest clone of a step there can be."""
    TARGET_FULL = "target full"
    """Not a byte more fits on the storage that a move brings its checkpoint to, until a person has made room."""
    SOURCE_GONE = "source gone"
    """The storage that it comes from is not there, until a person has brought it back."""
    TARGET_FROZEN = "target frozen"
    """The controller of the cluster that a move goes to takes requests and answers none, for a while."""
    ANSWER_LOST = "answer lost"
    """The next write to the cluster happens and its answer does not come back."""


class Boundary(Value):
    """Just before or just after a step's body, or around a write (or a command of Slurm) in the middle of it."""

    step: str
    side: Literal["before", "after", "before its write", "after its write", "before the command"]

    def __str__(self) -> str:
        return f"{self.side} {self.step}"


SURROUNDINGS = {Fault.TARGET_FULL, Fault.SOURCE_GONE, Fault.TARGET_FROZEN}
"""Of neither worker nor server."""
FREEZES = {Fault.WORKER_FROZEN, Fault.WORKER_SLEPT}

BOUNDARIES = tuple(Boundary(step=step, side=side) for step in STEPS for side in ("before", "after"))
IN_THE_MIDDLE = tuple(Boundary(step=step, side="after its write") for step in WRITES)


class Case(Value):
    """One run. Without a boundary nothing happens to it."""

    boundary: Boundary | None = None
    fault: Fault | None = None
    runbook: Runbook = Runbook.FAILOVER
    """Whose steps are meant."""
    faults: tuple[tuple[str, Fault], ...] = ()
    """Of a move and its placement, as many as there are in one run: each boundary, and what happens there, once."""

    def means(self, workflow_type: str | None) -> bool:
        """Whether the fault may happen in such a runbook."""
        return workflow_type in ({Runbook.TRANSFER, Runbook.PLACE} if self.faults else {self.runbook})

    def __str__(self) -> str:
        return f"{self.fault} {self.boundary}" if self.fault else "undisturbed"


AT_BOUNDARIES = (Fault.WORKER_KILLED, Fault.SERVER_KILLED, Fault.WORKER_FROZEN, Fault.ANSWER_LOST)
ONLY_ON_SLURM = tuple(
    Case(boundary=Boundary(step=step, side="before the command"), fault=Fault.WORKER_SLEPT)
    for step in ("requeuehold", "release")
)
"""Between what a write decided and its command; the embedded fleet reads and writes in one transaction."""
LATE = tuple(Boundary(step=step, side="before its write") for step in WRITES)
"""Where a clone would do harm if it wrote when the next attempt trains already."""
EVERY_CASE = (
    *(Case(boundary=at, fault=fault) for at in BOUNDARIES for fault in AT_BOUNDARIES),
    *(Case(boundary=at, fault=fault) for at in IN_THE_MIDDLE for fault in (Fault.WORKER_KILLED, Fault.WORKER_FROZEN)),
    *(Case(boundary=at, fault=Fault.WORKER_SLEPT) for at in LATE),
)
"""The whole product; a write in the middle of a step is followed by a fault of the worker only."""


class CrashPoint:
    """Lets the case's fault happen, once in all workers of the case: the first to come makes the marker file."""

    def __init__(
        self,
        case: Case,
        marker: Path,
        server_pid: Callable[[], int],
        lose_answer: Callable[[], None],
        befall: Callable[[Fault], None],
    ):
        self.case = case
        self.marker = marker
        self.server_pid = server_pid
        self.lose_answer = lose_answer
        self.befall = befall
        self.met = False

    def went_on(self) -> None:
        """After a freeze: the worker that met the boundary has ended the step that it was in."""
        if self.met:
            self.marker.with_suffix(".over").touch()

    def __call__(self, step: str, side: str) -> None:
        at = f"{side} {step}"
        fault = self.case.fault if str(self.case.boundary) == at else dict(self.case.faults).get(at)
        if fault is None:
            return
        marker = self.marker.with_name(f"{self.marker.name} {at}") if self.case.faults else self.marker
        try:
            with marker.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        self.met = True
        match fault:
            case Fault.WORKER_KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.SERVER_KILLED:
                os.kill(self.server_pid(), signal.SIGKILL)
            case Fault.WORKER_FROZEN | Fault.WORKER_SLEPT:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Fault.ANSWER_LOST:
                self.lose_answer()
            case Fault.TARGET_FULL | Fault.SOURCE_GONE | Fault.TARGET_FROZEN:
                self.befall(fault)


class KillAt(Interceptor):
    """Calls the crash point around each step of the case's runbook, and at its first and last workflow task."""

    def __init__(self, point: CrashPoint) -> None:
        self.point = point

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _Steps(next, self.point)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - the SDK's name
        input.unsafe_extern_functions[CALL] = self.point
        return _Runbook


class _Steps(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, point: CrashPoint) -> None:
        super().__init__(following)
        self.point = point

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's name
        info = activity.info()
        if not self.point.case.means(info.workflow_type):
            return await super().execute_activity(input)
        self.point(info.activity_type, "before")
        try:
            result = await super().execute_activity(input)
            self.point(info.activity_type, "after")
        finally:
            self.point.went_on()
        return result


class _Runbook(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
        point: Any = workflow.extern_functions()[CALL]
        if not point.case.means(workflow.info().workflow_type):
            return await super().execute_workflow(input)
        _stand_at(point, "before")
        result = await super().execute_workflow(input)
        _stand_at(point, "after")
        return result


def _stand_at(point: Any, side: str) -> None:
    """The SDK interrupts a workflow task that took over 2 s, so one that was frozen may end right where it wakes."""
    with workflow.unsafe.sandbox_unrestricted():
        try:
            point(WORKFLOW, side)
        finally:
            point.went_on()

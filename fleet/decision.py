"""What a job's runbook should do next, as values: the input and output of `fleet.ladder.next_step`."""

from enum import StrEnum

from fleet.faults.evidence import Verdict
from fleet.ledger import Ledger
from fleet.model import Value
from fleet.transfer import Moves


class Action(StrEnum):
    """The next step for a job."""

    NOTHING = "nothing"
    RESTART_IN_PLACE = "restart_in_place"
    FAILOVER_IN_CLUSTER = "failover_in_cluster"
    FAILOVER_ACROSS_CLUSTERS = "failover_across_clusters"
    REFUSE = "refuse"  # a user fault: never relocated, the owner gets the cause
    ASK = "ask"


class DecisionInput(Value):
    """All that a decision may look at; capacity and policy are read by the activity that decides."""

    cluster: str
    verdict: Verdict
    ledger: Ledger
    at: float
    """The workflow's time."""
    free_nodes: int | None = None
    """Nodes that could take the job: free ones and its own, less `fleet.ladder.unusable`, less `exclude`, less those
    that the job's owner rules out. None = not known."""
    nodes_wanted: int = 1
    moves: Moves | None = None
    """What says whether it could go to another cluster. None = it is not asked."""
    opted_in: bool = False
    """It may be moved to another cluster without asking (`gpu-runbooks.io/transfer`)."""
    want: Action | None = None
    """A person's order (`runbook start restart|failover|transfer`), which still obeys budgets and modes."""
    exclude: tuple[str, ...] = ()
    """Nodes that the person rules out."""


class Decision(Value):
    """The step, why, what is left, and under which policy it was made."""

    action: Action
    why: str
    delay: float = 0.0
    """Seconds to wait before it."""
    exclude: tuple[str, ...] = ()
    """Nodes that the next attempt must not use."""
    budget_left: int = 0
    """Tries left on this rung for this cause after this one."""
    charge: int = 1
    """What it costs that budget, and so the `charge` of the attempt that it leads to; 2 after an early failure."""
    mode: str = "propose"
    policy_hash: str = ""
    checkpoint_grace: float = 120.0
    step_timeout: float = 1800.0
    run_timeout: float = 86400.0
    across_size: float = 1e12
    """Bytes that a move to another cluster may copy without asking."""

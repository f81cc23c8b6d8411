"""Names of the custom search attributes that runbooks carry in Temporal. One place; types as Temporal spells them.

They are the filters of the Temporal UI and of `runbook list`. Values are never encoded, so nothing secret goes here.
"""

from collections.abc import Mapping

CLUSTER = "RunbookCluster"
"""Cluster that the runbook acts on."""
NODE = "RunbookNode"
"""Node in trouble."""
JOB = "RunbookJob"
"""Fleet name of the job."""
FAULT = "RunbookFault"
"""Fault class of the verdict (`fleet.faults.evidence.FaultClass`)."""
STEP = "RunbookStep"
"""Step that the runbook is at."""
NEEDS_HUMAN = "RunbookNeedsHuman"
"""True while the runbook waits for a person."""

ATTRIBUTES: Mapping[str, str] = {
    CLUSTER: "Keyword",
    NODE: "Keyword",
    JOB: "Keyword",
    FAULT: "Keyword",
    STEP: "Keyword",
    NEEDS_HUMAN: "Bool",
}
"""name -> type, to register once per namespace. A SQL store has 10 Keyword and 3 Bool columns (Temporal 1.32)."""

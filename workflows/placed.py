"""What `SuperviseJob` does for a job that has no cluster yet."""

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ChildWorkflowError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from fleet.identity import job_workflow_id
    from fleet.placing import PlaceWish
    from fleet.runbooks import FINGERPRINT_MEMO, PlaceInput, PlaceResult, Runbook
    from workflows import attributes
    from workflows.judging import Judging


class Placed(Judging):
    """A job that may have to be placed first."""

    async def place(self, wish: PlaceWish) -> str:
        """Lets a child find a cluster. Empty where the job runs now; else why it does not, in words."""
        name = f"{job_workflow_id(self.inp.job)}/place/{self.ledger.generation + 1}"
        self.at("place", waits=f"`{name}`")
        try:
            result: PlaceResult = await workflow.execute_child_workflow(
                Runbook.PLACE,
                PlaceInput(wish=wish, generation=self.ledger.generation + 1),
                id=name,
                result_type=PlaceResult,
                static_summary=f"a cluster for {self.inp.job}"[:180],
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(attributes.JOB, self.inp.job),
                        SearchAttributePair(attributes.STEP, "starting"),
                        SearchAttributePair(attributes.NEEDS_HUMAN, False),
                    ]
                ),
            )
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                raise
            how = "was cancelled" if is_cancelled_exception(error) else "failed"
            return f"not placed: `{name}` {how}; it says what is left where"
        self.tell(result.text)
        if result.native is None:
            return result.text
        self.inp = self.inp.model_copy(
            update={
                "cluster": result.cluster,
                "spec": result.spec,
                "wish": None,
                "home": wish,
                "fingerprint": result.native.fingerprint,
            }
        )
        self.native = result.native
        workflow.upsert_memo({FINGERPRINT_MEMO: self.inp.fingerprint})
        workflow.upsert_search_attributes([attributes.CLUSTER.value_set(result.cluster)])
        self.headline = f"Job {self.inp.job} on {self.inp.cluster}"
        return ""

"""One copy from its survey to its receipt, as every runbook makes it that brings a job's files somewhere; and what
checkpoints a site holds, which comes before it and after it."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import copy_api, site_api
    from activities.copy_api import CopyOrder
    from activities.site_api import FoundCheckpoints
    from fleet.copying.space import size_text
    from fleet.sites import Storage
    from workflows.base import Book, StepFailed

PROOFS = 3
"""How often a copy is made again of which something differs at the target; then it is the storage's fault."""


class Carrying(Book):
    """What a runbook does to bring files to another site."""

    async def find_checkpoints(
        self, storage: Storage | None, total_steps: int | None, budget: timedelta | None = None
    ) -> FoundCheckpoints:
        """What a checkpoint root holds; nothing where there is no root. Raises StepFailed where its site's mover does
        not answer within `budget` (by default the step's own)."""
        if storage is None:
            return FoundCheckpoints(site="", there=False, at=self.now())
        return await self.act(
            site_api.FIND_CHECKPOINTS,
            site_api.FindCheckpoints(storage=storage, total_steps=total_steps),
            site=storage.site,
            budget=budget,
            summary=f"checkpoints in {storage.path}",
        )

    async def not_offered(self, storage: Storage, step: int | None, total_steps: int | None) -> str:
        """Why that step is not the newest complete checkpoint of a root; empty when it is. Raises StepFailed."""
        there = await self.find_checkpoints(storage, total_steps)
        found = there.newest.step if there.newest else None
        if there.newest is not None and found == step:
            return ""
        return f"{storage.path} offers step {found}, not step {step}; look at what lies there"

    async def carry(self, order: CopyOrder, site: str, what: str) -> str:
        """Copies, reads everything back, publishes, and takes away what was only needed for it. Why it is not there,
        in words; empty when it is. What was copied stays to go on from."""
        try:
            survey = await self.act(copy_api.SURVEY_COPY, order, site=site, summary=f"{what} to {site}: does it fit?")
            if survey.problems:
                return "; ".join(survey.problems)
            if survey.published:
                return ""
            why = await self._copied(order, site, what)
            if why:
                return why
            await self.act(copy_api.PUBLISH_COPY, order, site=site, summary=f"{what}: publish it at {site}")
        except StepFailed as failed:
            return str(failed)
        await self._dropped(order, site, what)
        return ""

    async def _dropped(self, order: CopyOrder, site: str, what: str) -> None:
        """What was published counts; what could not be taken away takes room, and is told."""
        try:
            await self.act(copy_api.DROP_COPY, order, site=site, summary=f"{what}: take staging and links away")
        except StepFailed as failed:
            self.tell(f"{what} is at {site}; what only its copy needed is left there: {failed}"[:300])

    async def _copied(self, order: CopyOrder, site: str, what: str) -> str:
        """Into staging, until it reads back as it was read. Raises StepFailed."""
        for _ in range(PROOFS):
            done = await self.act(copy_api.COPY_FILES, order, site=site, summary=f"copy {what} to {site}")
            proof = await self.act(copy_api.PROVE_COPY, order, site=site, summary=f"read {what} back at {site}")
            if proof.ok:
                seconds = done.seconds + proof.seconds
                self.tell(f"{what}: {size_text(done.copied)} copied to {site} and read back in {seconds:.0f} s")
                return ""
            self.tell(f"{what}: {proof.text}; copied again")
        return f"it reads back differently at {site} again and again: {proof.text}"

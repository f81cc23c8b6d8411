"""What a move to another cluster reads: the way of its checkpoint, the job's own spec, the newest complete checkpoint."""

import asyncio
from pathlib import Path

from activities import transfer_api
from activities.checkpoints import list_root
from activities.registry import implements
from activities.runtime import Owner
from fleet.checkpoints.judge import judge
from fleet.checkpoints.model import Candidate
from fleet.checkpoints.names import shown
from fleet.copying.manifest import parts_of
from fleet.errors import NotFoundError, RefusedError, TemporaryError
from fleet.transfer import way_between, wish_of_native

REJECTED = 10
"""Candidates whose reason is told; the newest matter."""
LOOKS = 3
"""How often a root is looked at that changes meanwhile."""


class MoveActivities(Owner):
    """Run on the runbooks' queue."""

    @implements(transfer_api.PLAN_MOVE)
    async def plan_move(self, arg: transfer_api.MoveIn) -> transfer_api.MovePlan:
        """By today's policy. Refused where the checkpoint has no way there."""
        policy = self.runtime.policy()
        return transfer_api.MovePlan(
            way=way_between(policy, arg.cluster, arg.target, arg.root), across_size=policy.limits.across_size
        )

    @implements(transfer_api.FIND_WISH)
    async def find_wish(self, arg: transfer_api.WishIn) -> transfer_api.WishOut:
        """From the script that was saved at its adoption."""
        kind = self.runtime.policy().cluster(arg.cluster).kind
        saved = await self.runtime.store.spec_of(arg.job)
        if saved is None or saved.script is None:
            raise RefusedError(f"no script of {arg.job} was saved when it was adopted, so it cannot be submitted again")
        if saved.redacted:
            raise RefusedError(
                f"the script of {arg.job} holds a secret, which was not saved, so it cannot be submitted again; keep "
                "secrets in files or in the scheduler's own means"
            )
        return transfer_api.WishOut(wish=wish_of_native(arg.job, arg.native, kind, saved.script))


class SiteActivities(Owner):
    """Run on the queue of a site, next to its storage."""

    @implements(transfer_api.FIND_CHECKPOINT)
    async def find_checkpoint(self, arg: transfer_api.RootIn) -> transfer_api.Checkpoint:
        """The newest complete one; an absent folder holds none."""
        for _ in range(LOOKS):
            try:
                found = await asyncio.to_thread(_find, Path(arg.root))
            except NotFoundError as error:
                return transfer_api.Checkpoint(why=str(error))
            if found is not None:
                return found
        raise TemporaryError(f"{arg.root} changes faster than it can be looked at", delay=30)


def _find(root: Path) -> transfer_api.Checkpoint | None:
    """None where the newest complete one changed while it was judged."""
    tree, contents = list_root(root)
    judged = judge(tree, None)
    newest = judged.newest_complete
    rejected = tuple(_told(c) for c in judged.candidates if not c.complete)[:REJECTED]
    if newest is None or not judged.movable:
        why = judged.question or f"{shown(root)} holds no complete checkpoint that could be moved"
        return transfer_api.Checkpoint(why=why, rejected=rejected)
    if not contents.unchanged(newest):
        return None
    return transfer_api.Checkpoint(
        name=newest.entry.name,
        step=newest.entry.step,
        size=newest.entry.size,
        parts=parts_of(newest.entry, (file.path for file in tree.below(""))),
        why=newest.reason,
        rejected=rejected,
    )


def _told(candidate: Candidate) -> str:
    return f"{shown(candidate.entry.name)}: {candidate.reason}"[:300]

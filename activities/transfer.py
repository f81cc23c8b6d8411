"""What a move to another cluster needs of a job that was made for one."""

from activities import transfer_api
from activities.registry import implements
from activities.runtime import Owner
from fleet.errors import RefusedError
from fleet.protected import as_saved


class MoveActivities(Owner):
    """Run on the runbooks' queue."""

    @implements(transfer_api.FIND_WISH)
    async def find_wish(self, arg: transfer_api.WishIn) -> transfer_api.WishOut:
        """From the script that was saved at its adoption."""
        kind = self.runtime.policy().cluster(arg.cluster).kind
        saved = await self.runtime.store.spec_of(arg.job)
        if saved is None or saved.script is None:
            raise RefusedError(
                f"no script of {arg.job} was saved when it was adopted, so it cannot be submitted again"
            )
        if saved.redacted:
            raise RefusedError(
                f"the script of {arg.job} holds a secret, which was not saved, so it cannot be submitted again; keep "
                "secrets in files or in the scheduler's own means"
            )
        return transfer_api.WishOut(wish=as_saved(arg.job, arg.native, kind, saved.script, saved.spec_text))

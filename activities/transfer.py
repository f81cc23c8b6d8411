"""What a move to another cluster needs of a job that was made for one."""

from activities import transfer_api
from activities.registry import implements
from activities.runtime import Owner
from fleet.errors import RefusedError
from fleet.protected import JobOrder, protected


class MoveActivities(Owner):
    """Run on the runbooks' queue."""

    @implements(transfer_api.FIND_WISH)
    async def find_wish(self, arg: transfer_api.WishIn) -> transfer_api.WishOut:
        """From the script that was saved at its adoption."""
        kind = self.runtime.policy().cluster(arg.cluster).kind
        saved = await self.runtime.store.spec_of(arg.job)
        order = JobOrder(
            job=arg.job,
            cluster=arg.cluster,
            native_id=arg.native.native_id,
            kinds={arg.cluster: kind},
            script=saved.script if saved else None,
            spec_text=saved.spec_text if saved else "",
            redacted=saved.redacted if saved else False,
        )
        found, why = protected(order, arg.native)
        if found is None:
            raise RefusedError(f"{arg.job} cannot be submitted again: {why}")
        return transfer_api.WishOut(wish=found.wish)

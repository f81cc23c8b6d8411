"""What a placement asks of one cluster: its room, a trial, and whether the job has got its nodes."""

import time

from activities import api, place_api
from activities.registry import implements
from activities.runtime import Owner, until
from fleet.errors import TemporaryError
from fleet.model import NativeJob, Phase, Room


class PlacingActivities(Owner):
    """Runs on a cluster's queue."""

    @implements(place_api.READ_ROOM)
    async def read_room(self, arg: api.PolicyIn) -> Room:
        """Live."""
        return await self.runtime.backend(arg.cluster).room()

    @implements(place_api.TRY_SUBMIT)
    async def try_submit(self, arg: api.Submit) -> place_api.Trial:
        """Makes nothing."""
        return place_api.Trial(refuses=await self.runtime.backend(arg.cluster).try_submit(arg.spec))

    @implements(place_api.WAIT_PLACED)
    async def wait_placed(self, arg: place_api.WaitPlaced) -> place_api.WaitedPlaced:
        """Running with nodes, over, or lost by its controller; at the deadline as it is then. A cluster that does
        not answer is asked again until the deadline, for not answering is no end."""
        backend = self.runtime.backend(arg.cluster)
        native: NativeJob | None = None
        why = ""

        async def decided() -> bool:
            nonlocal native, why
            try:
                native, why = await backend.job(arg.native_id), ""
            except TemporaryError as error:
                native, why = None, str(error)
                return False
            held_nodes = native.phase in {Phase.RUNNING, Phase.STOPPING} and bool(native.nodes)
            return held_nodes or native.phase.ended or native.phase is Phase.ABSENT

        await until(decided, seconds=max(0.0, arg.until - time.time()), every=0.25, slowest=3.0)
        return place_api.WaitedPlaced(native=native, why=why)

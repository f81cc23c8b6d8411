"""Why a job hangs: its ranks' Flight Recorder dumps are read from the folder that it names, and compared."""

import asyncio
import time
from collections.abc import Sequence

from activities import api
from activities.backends.port import DumpReader
from activities.registry import implements
from activities.runtime import Owner
from fleet.faults.hangs.diagnose import diagnose
from fleet.faults.hangs.meetings import world_size
from fleet.faults.hangs.places import Place, by_blocks
from fleet.model import NativeJob


class HangActivities(Owner):
    """One instance per worker; the backend is chosen by each input's cluster."""

    @implements(api.DIAGNOSE_HANG)
    async def diagnose_hang(self, arg: api.Hang) -> api.EvidenceIn:
        """What the dumps of one attempt say together, as one piece of evidence; none where it left no dump."""
        backend = self.runtime.backend(arg.cluster)
        if not isinstance(backend, DumpReader):
            return api.EvidenceIn(cluster=arg.cluster)
        native = await backend.job(arg.native_id)
        found = await backend.dumps(arg.native_id, arg.since)
        if not found.dumps:
            return api.EvidenceIn(cluster=arg.cluster)
        ranks = world_size(found.dumps)
        report = await asyncio.to_thread(
            diagnose,
            found.dumps,
            places=places_of(native, arg.nodes, ranks),
            ranks=ranks,
            job=arg.job,
            catalogue=self.runtime.tables().version,
        )
        seen = report.evidence(cluster=arg.cluster, job=arg.job, seen_at=time.time())
        return api.EvidenceIn(cluster=arg.cluster, evidence=(seen,))


def places_of(native: NativeJob, nodes: Sequence[str], ranks: int) -> dict[int, Place]:
    """Blocks over the attempt's nodes, in the cluster's order of them. None where the order cannot be trusted: some
    of its nodes are not known, or two of its pods share one."""
    return by_blocks(nodes, ranks) if len(nodes) == native.nodes_wanted else {}

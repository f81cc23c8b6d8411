"""Run in a pod, with its account: `in_pod.py FLEET CLUSTER NODE`. The adapter that a worker there would make isolates
the node and releases it; what it saw goes to standard output as one line of JSON."""

import asyncio
import json
import sys
from pathlib import Path

from activities.backends.factory import make_backend
from activities.backends.kubernetes.backend import KubernetesBackend
from fleet.policy import Policy
from fleet.policy_file import parse_policy

OP = "inapodd"


async def work(policy: Policy, folder: Path, cluster: str, node: str) -> dict[str, object]:
    backend = make_backend(cluster, policy, folder)
    assert isinstance(backend, KubernetesBackend)
    try:
        first = await anext(aiter(backend.watch()))
        isolated = await backend.isolate(node, OP, "seen from a pod")
        released = await backend.release(node, OP)
        return {
            "host": (await backend.api._open()).configuration.host,
            "nodes": sorted(facts.node for facts in first.nodes),
            "isolated": isolated.op,
            "released": released.op,
            "missing": [*(await backend.missing_rights()).rights],
        }
    finally:
        await backend.close()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    seen = asyncio.run(work(parse_policy(file.read_text(), str(file)), file.parent, *sys.argv[2:]))
    print(json.dumps(seen))  # noqa: T201 - the pod's log

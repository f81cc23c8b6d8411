"""Room in a cluster: nodes that are alike for a job counted together, and GPU models told by their names."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from fleet.model import NativeJob, NodeGroup, Phase

_WORDS = re.compile(r"[a-z0-9]+")


class NodeRoom(NamedTuple):
    """One node as a placement sees it."""

    free: bool
    """Wholly: it could take a job of whole nodes now."""
    gpus: int
    gpu_model: str = ""
    """As the cluster names it; empty where it does not say."""
    domain: str = ""
    """The switch or block that it hangs on; empty where the cluster does not say."""


def grouped(nodes: Iterable[NodeRoom]) -> tuple[NodeGroup, ...]:
    """Nodes with one GPU model, one count of GPUs and one topology domain are one group; in a stable order."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    for (free, gpus, gpu_model, domain), count in Counter(nodes).items():
        groups.setdefault((gpu_model, gpus, domain), [0, 0])[free] += count
    return tuple(
        NodeGroup(gpu_model=model, gpus=gpus, domain=domain, free=free, total=busy + free)
        for (model, gpus, domain), (busy, free) in sorted(groups.items())
    )


@lru_cache(maxsize=4096)
def same_model(wanted: str, offered: str) -> bool:
    """Whether a cluster's name for a GPU says the wanted one: `H100` is in `NVIDIA-H100-80GB-HBM3` and in `h100`,
    `H100-80GB` only in the first. An offered name that is empty says nothing."""
    words = _WORDS.findall(wanted.lower())
    return bool(words) and set(words) <= set(_WORDS.findall(offered.lower()))


def waiting(jobs: Iterable[NativeJob]) -> tuple[int, ...]:
    """Whole nodes that each job wants which waits for room, the largest first; a held one waits for somebody."""
    wanted = (job.nodes_wanted for job in jobs if job.phase is Phase.PENDING and not job.held)
    return tuple(sorted(wanted, reverse=True))

"""Every kind of job that is known, outermost first: the pods of a JobSet are those of its Jobs, too."""

from activities.backends.kubernetes.kinds.base import JobKind
from activities.backends.kubernetes.kinds.batch_job import BatchJob
from activities.backends.kubernetes.kinds.jobset import JobSet
from activities.backends.kubernetes.kinds.observed import OBSERVED
from activities.backends.kubernetes.kinds.pytorch_job import PyTorchJob
from activities.backends.kubernetes.kinds.ray_job import RayJob
from activities.backends.kubernetes.kinds.train_job import TrainJob

KINDS: tuple[JobKind, ...] = (RayJob(), TrainJob(), JobSet(), PyTorchJob(), *OBSERVED, BatchJob())
ALWAYS: tuple[JobKind, ...] = tuple(kind for kind in KINDS if kind.group == "batch")
"""Those that every cluster has."""

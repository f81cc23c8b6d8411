"""Short words for what a judgement says."""

from fleet.checkpoints.model import Candidate, Judgement


def newest(found: Judgement) -> int | None:
    """Step of the newest complete checkpoint."""
    return found.newest_complete.entry.step if found.newest_complete else None


def entry(found: Judgement, name: str) -> Candidate:
    """The candidate of that name, which is there."""
    return next(c for c in found.candidates if c.entry.name == name)

"""Our marks inside Slurm: words in a job's AdminComment, names of reservations and of check jobs.

A job's AdminComment belongs to the site; ours are whole words in it and only those are added and taken away.
`gpu-runbooks:since=T`: adopted; T is the job's submit time then, for Slurm moves SubmitTime at each requeue.
`gpu-runbooks:held`: the hold is ours. `gpu-runbooks:pin=LIST`: ReqNodeList is ours; LIST is what it was before.
`gpu-runbooks:excluded=LIST`: nodes that we put into ExcNodeList beside its owner's.
"""

from fleet.model import MARK, Value

PREFIX = f"{MARK}:"
RESERVATION = f"{MARK}_"
CHECK_JOB = f"{MARK}-check."
NO_PIN = "none"


class JobMarks(Value):
    """What we wrote into one job's AdminComment."""

    since: float | None = None
    held: bool = False
    pin: str | None = None
    """The owner's own ReqNodeList while ours stands there; `none` when there was none."""
    excluded: tuple[str, ...] = ()
    """Nodes in ExcNodeList that are ours."""

    @property
    def ours(self) -> bool:
        return self != JobMarks()


def read_marks(admin_comment: str) -> JobMarks:
    """Our words in an AdminComment; words that we do not know are not ours."""
    words: dict[str, str] = {}
    for word in admin_comment.split():
        if word.startswith(PREFIX):
            key, _, value = word[len(PREFIX) :].partition("=")
            words.setdefault(key, value)
    since = words.get("since", "")
    return JobMarks(
        since=float(since) if since.isdigit() else None,
        held="held" in words,
        pin=words.get("pin") or None,
        excluded=tuple(filter(None, words.get("excluded", "").split(","))),
    )


def write_marks(admin_comment: str, marks: JobMarks) -> str:
    """The AdminComment with exactly these marks; the site's own text stays as it is."""
    words = [word for word in admin_comment.split(" ") if not word.startswith(PREFIX)]
    if marks.since is not None:
        words.append(f"{PREFIX}since={marks.since:.0f}")
    if marks.held:
        words.append(f"{PREFIX}held")
    if marks.pin is not None:
        words.append(f"{PREFIX}pin={marks.pin}")
    if marks.excluded:
        words.append(f"{PREFIX}excluded={','.join(marks.excluded)}")
    return " ".join(words).strip()


def reservation_name(op: str) -> str:
    return f"{RESERVATION}{op}"


def op_of_reservation(name: str) -> str | None:
    """Op id of a reservation of ours, else None."""
    return name[len(RESERVATION) :] if name.startswith(RESERVATION) and len(name) == len(RESERVATION) + 7 else None


def check_name(op: str) -> str:
    return f"{CHECK_JOB}{op}"

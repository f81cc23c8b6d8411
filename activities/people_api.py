"""Names, inputs, outputs and time limits of the activities of a question.

As in `activities/api.py`: no SDK, no effect.
"""

from datetime import timedelta

from activities.api import Activity, Told
from fleet.model import Value
from fleet.people import Answer, Question


class VerifyIn(Value):
    question: Question
    answer: Answer


class Verified(Value):
    ok: bool
    why: str


class NotifyIn(Value):
    question: Question
    workflow_id: str
    link: str = ""
    delivery: str = ""
    """Names this delivery: alike in each retry, another one for a reminder."""


VERIFY_ANSWER = Activity("verify_answer", VerifyIn, Verified, timedelta(seconds=20), timedelta(seconds=120))
NOTIFY = Activity("notify", NotifyIn, Told, timedelta(seconds=25), timedelta(seconds=30))

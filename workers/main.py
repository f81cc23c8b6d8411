"""Entry point of `runbook`: the commands that need only Temporal, and those that run processes here."""

import sys

from clients.app import RUN, Command, leave, make_app
from clients.app import main as run

COMMANDS = (
    Command("dev", "workers.dev:dev", "Start the embedded Temporal server and a worker.", RUN),
    Command("worker", "workers.dev:worker", "Run a worker for a Temporal server of yours.", RUN),
    Command("demo", "workers.demo:demo", "Lose a GPU and train again, on an embedded fleet.", RUN),
    Command("lab", "workers.lab:lab", "Real private clusters on this machine.", RUN),
    Command("doctor", "workers.doctor:doctor", "Say what is missing and what to do.", RUN),
    Command(
        "checkpoints", "workers.checkpoints:checkpoints", "Which checkpoint is complete, and why not the others.", RUN
    ),
    Command("diagnose hang", "workers.diagnose:hang", "Which rank a job waits for, from its ranks' dumps.", RUN),
)


def main() -> None:
    """`runbook`."""
    leave(run(make_app(COMMANDS), sys.argv[1:]))

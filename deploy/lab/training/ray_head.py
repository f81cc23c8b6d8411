#!/usr/bin/env python3
"""What KubeRay talks to in a Ray head, without Ray: the job server of its dashboard, on port 8265.

KubeRay posts a RayJob's entrypoint (`submissionMode: HTTPMode`) and then asks for its status. The entrypoint runs in
this container as rank 0, its output is the container's; the other ranks are the command of the worker pods. One job
at a time; after a restart of the container it knows none, as a head without a store of its own, and KubeRay posts
the entrypoint again. SIGTERM is passed on; it ends with 143 when the entrypoint has ended.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TERMINATED = 143
Json = dict[str, Any]


class Job:
    """One submitted entrypoint."""

    def __init__(self, submission: str, entrypoint: str) -> None:
        self.submission, self.entrypoint = submission, entrypoint
        self.started, self.ended, self.stopped = time.time(), 0.0, False
        self.process = subprocess.Popen(shlex.split(entrypoint))
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self.process.wait()
        self.ended = time.time()

    def info(self) -> Json:
        """In Ray's form; times in milliseconds."""
        code = self.process.returncode
        status = "RUNNING" if code is None else "STOPPED" if self.stopped else "FAILED" if code else "SUCCEEDED"
        return {
            "submission_id": self.submission,
            "job_id": self.submission,
            "entrypoint": self.entrypoint,
            "status": status,
            "message": "" if code is None else f"the entrypoint ended with {code}",
            "start_time": int(self.started * 1000),
            "end_time": int(self.ended * 1000),
        }

    def stop(self) -> bool:
        """Asks it to end; False when it has ended already."""
        if self.process.returncode is not None:
            return False
        self.stopped = True
        self.process.send_signal(signal.SIGTERM)
        return True


class Jobs(BaseHTTPRequestHandler):
    """Ray's REST interface for jobs, as far as KubeRay uses it."""

    current: Job | None = None
    lock = threading.Lock()

    def do_GET(self) -> None:
        """All jobs, or one."""
        job = Jobs.current
        if self.path == "/api/jobs/":
            self._answer(200, [job.info()] if job else [])
        elif job and self.path == f"/api/jobs/{job.submission}":
            self._answer(200, job.info())
        else:
            self._answer(404, {"message": "no such job"})

    def do_POST(self) -> None:
        """Submits one, or stops it."""
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        with Jobs.lock:
            job = Jobs.current
            if job and self.path == f"/api/jobs/{job.submission}/stop":
                self._answer(200, {"stopped": job.stop()})
            elif self.path != "/api/jobs/":
                self._answer(404, {"message": "no such job"})
            elif job and job.process.returncode is None:
                self._answer(500, {"message": "a job runs already. Please use a different submission_id"})
            else:
                Jobs.current = job = Job(asked["submission_id"], asked["entrypoint"])
                self._answer(200, {"job_id": job.submission, "submission_id": job.submission})

    def _answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: the output is the training's."""


def terminate(*_: object) -> None:
    """Ends the job, then this process."""
    if Jobs.current and Jobs.current.process.poll() is None:
        Jobs.current.stop()
        Jobs.current.process.wait()
    os._exit(TERMINATED)


def main() -> int:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8265, help="default %(default)s, Ray's own")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, terminate)
    ThreadingHTTPServer(("", given.port), Jobs).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

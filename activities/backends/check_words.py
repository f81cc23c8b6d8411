"""What a check program says: one JSON line {"ok", "gpus", "detail"} and an exit code that must agree.

`uuids`, a list of the GPUs' uuids, may stand beside them: so a GPU is known again on another node.
"""

import json
import re

from activities.backends.programs import Ended
from fleet.model import CheckResult, NodeFacts

PASSED, FAILED = 0, 1
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,60}", re.ASCII)


def judge(facts: NodeFacts, suite: str, done: Ended) -> CheckResult:
    """Its JSON line and its exit code must agree; the GPU count is ours to compare. "Could not run" is not "sick"."""
    said = last_json(done.out)
    gpus = said.get("gpus") if isinstance(said.get("gpus"), int) else None
    detail = str(said.get("detail") or done.text)[:500]
    ran = not done.timed_out and done.rc in {PASSED, FAILED} and isinstance(said.get("ok"), bool)
    if ran and gpus != facts.gpus_expected:
        detail = f"{'no GPU count' if gpus is None else gpus} of {facts.gpus_expected} GPUs; {detail}"
    passed = ran and done.rc == PASSED and said["ok"] is True and gpus == facts.gpus_expected
    return CheckResult(
        node=facts.node,
        suite=suite,
        ran=ran,
        passed=passed,
        gpus=gpus if ran else None,
        uuids=_uuids(said.get("uuids")) if ran else (),
        detail=detail,
    )


def _uuids(said: object) -> tuple[str, ...]:
    """NVML's names of GPUs, sorted; empty unless all of them are."""
    names = said if isinstance(said, list) else []
    legal = all(isinstance(name, str) and _UUID.fullmatch(name) for name in names)
    return tuple(sorted(set(names))) if legal else ()


def last_json(text: str) -> dict[str, object]:
    """The last line that is a JSON object; a check may print other things before it."""
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}

"""Every write: read, decide, write under the version that was read, read back. What comes back is what is there."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from activities.backends.kubernetes.api import MERGE, Answer, KubeApi, Raw
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from fleet.errors import AmbiguousError, TemporaryError

T = TypeVar("T")
TRIES = 25
"""Writes under a version that had changed. A kubelet changes its node every 10 s; a second writer in a tight loop was
beaten within 6 tries."""


async def patched(
    api: KubeApi,
    what: str,
    path: str,
    decide: Callable[[Raw], Raw | None],
    *,
    kind: str = MERGE,
    part: str = "",
    ready: tuple[str, Raw] | None = None,
) -> Raw:
    """Reads the object, lets `decide` make a patch of it, and writes that under the resourceVersion that was read.

    `decide` gives None when nothing is left to do, also because an earlier try of ours was carried out; it may raise
    RefusedError. `ready` is a version of the object as it was seen, however long ago, and the patch that `decide`
    would make of it: tried before anything is read, for it lands on that very version or not at all. `part` is a
    subresource such as `/status`. So a lost answer is read back here, and repeated safely: what lands late meets
    another version.
    """
    answer: Answer | None = None
    for _ in range(TRIES):
        if ready is not None and ready[0]:
            (version, patch), ready = ready, None
        else:
            seen = await _read(api, what, path, answer)
            version, decided = seen["metadata"]["resourceVersion"], decide(seen)
            if decided is None:
                return seen
            patch = decided
        meta = {**patch.get("metadata", {}), "resourceVersion": version}
        answer = await api.write("PATCH", path + part, {**patch, "metadata": meta}, kind)
        if answer.outcome is Outcome.DONE:
            return answer.body
        if answer.outcome not in {Outcome.UNKNOWN, Outcome.CONFLICT}:
            raise error_of_write(what, answer.outcome, answer.text, answer.retry_after)
        await asyncio.sleep(random.uniform(0.01, 0.08))  # noqa: S311 - jitter
    raise TemporaryError(f"{what}: somebody else keeps writing there, {TRIES} tries met another version", delay=1.0)


async def _read(api: KubeApi, what: str, path: str, answer: Answer | None) -> Raw:
    """The object now. `answer` is that of the write before, if there was one."""
    try:
        return await api.get(what, path)
    except TemporaryError as error:
        if answer is not None and answer.outcome is Outcome.UNKNOWN:
            raise AmbiguousError(f"{what}: no answer ({answer.text}; {error}); read back first") from error
        raise


async def delete_pod(api: KubeApi, namespace: str, name: str, uid: str, *, grace: int | None = None) -> Answer:
    """Orders the end of that very pod; the answer is not judged. `grace` in seconds; None for the pod's own."""
    body: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    if grace is not None:
        body["gracePeriodSeconds"] = grace
    return await api.write("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)


async def end_pod(api: KubeApi, what: str, namespace: str, name: str, uid: str, *, grace: int | None = None) -> None:
    """The same; no error when it, or it by that uid, is gone. Raises the error of any other answer."""
    answer = await delete_pod(api, namespace, name, uid, grace=grace)
    if answer.outcome not in {Outcome.DONE, Outcome.NOT_FOUND, Outcome.CONFLICT}:
        raise error_of_write(what, answer.outcome, answer.text, answer.retry_after)


async def shown(what: str, read: Callable[[], Awaitable[T]], settled: Callable[[T], bool], seconds: float) -> T:
    """Polls until the effect of an accepted write shows. Raises TemporaryError when it does not in `seconds`."""
    end = time.monotonic() + seconds
    pause = 0.05
    while True:
        value = await read()
        if settled(value):
            return value
        if time.monotonic() >= end:
            raise TemporaryError(f"{what}: accepted, and its effect is not to be seen; it is asked again", delay=2.0)
        await asyncio.sleep(pause)
        pause = min(pause * 1.7, 0.5)

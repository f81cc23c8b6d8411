"""A reboot by NVSentinel's RebootNode, where its CRD exists and the cluster has no power hook of ours.

The object asks; what it says of itself proves nothing (the reboot is seen by another boot identity). Only its
refusals are read: manual mode, and a signal that could not be sent. Source: NVSentinel, janitor API v1alpha1.
"""

import asyncio
import time

from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.kinds.base import true_conditions
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from activities.backends.kubernetes.records import conditions_of
from fleet.errors import RefusedError
from fleet.identity import TOKEN_PREFIX, op_id
from fleet.model import MARK

GROUP, VERSION, PLURAL = "janitor.dgxc.nvidia.com", "v1alpha1", "rebootnodes"
PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
HEARD_WITHIN = 10.0
"""Seconds in which the janitor's first word on an order is waited for; it is no error when none comes."""


async def order_reboot(api: KubeApi, node: str, op: str, boot: str) -> None:
    """One object for one boot of the node, however often asked. Raises RefusedError with the janitor's words."""
    name = f"{MARK}-{op_id(op, node, boot)}"
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RebootNode",
        "metadata": {"name": name, "annotations": {f"{TOKEN_PREFIX}op": op}},
        "spec": {"nodeName": node, "force": False},
    }
    answer = await api.write("POST", PATH, body)
    if answer.outcome not in {Outcome.DONE, Outcome.EXISTS, Outcome.UNKNOWN}:
        raise error_of_write(f"RebootNode of {node}", answer.outcome, answer.text, answer.retry_after)
    end = time.monotonic() + HEARD_WITHIN
    while time.monotonic() < end:
        made = await api.get(f"RebootNode {name}", f"{PATH}/{name}")
        if (why := _refused(made)) is not None:
            raise RefusedError(f"NVSentinel does not reboot {node}: {why} (kubectl describe rebootnode {name})")
        if "SignalSent" in true_conditions(made):
            return
        await asyncio.sleep(0.3)


def _refused(raw: Raw) -> str | None:
    if "ManualMode" in true_conditions(raw):
        return "it is in manual mode, a person must reboot the node"
    said = conditions_of(raw).get("SignalSent", {})
    if said.get("status") == "False":
        return " ".join(w for w in (said.get("reason"), said.get("message")) if w) or "its signal could not be sent"
    return None

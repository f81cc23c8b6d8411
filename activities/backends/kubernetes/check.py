"""Runs a check on an isolated node: a pod that tolerates our taint and the cordon, bound to that node.

Nothing else is scheduled there, so the node stays isolated all the while.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import yaml

from activities.backends.check_words import judge
from activities.backends.kubernetes import marks
from activities.backends.kubernetes.api import KubeApi, Raw
from activities.backends.kubernetes.nodes import refuse_foreign
from activities.backends.kubernetes.outcomes import Outcome, error_of_write
from activities.backends.kubernetes.plugin import restart_plugin
from activities.backends.kubernetes.records import PodRecord, pod_record
from activities.backends.kubernetes.view import ClusterView
from activities.backends.kubernetes.writes import delete_pod
from activities.backends.programs import Ended
from fleet.errors import InvalidInputError, NotFoundError, RefusedError, TemporaryError
from fleet.model import MARK, CheckResult, NodeFacts

CHECK_OP = "gpu-runbooks.io/check-op"
"""Label of a check's pod; its value is the op."""
CHECK_NODE = "gpu-runbooks.io/check-node"
CHECK_NAME = f"{MARK}-check-"
"""How the name of a check's pod begins."""
TOLERATED = (
    {"key": marks.ISOLATED, "operator": "Exists"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
)
GONE_WITHIN = 60.0
"""Seconds that an older check pod may take to go."""


class Checks:
    """`run_check` of one cluster."""

    def __init__(self, api: KubeApi, view: ClusterView) -> None:
        self.api = api
        self.view = view

    async def run(self, node: str, op: str, suite: str) -> CheckResult:
        facts = await self.view.node(node)
        refuse_foreign(facts, op)
        if facts.op != op:
            raise RefusedError(f"{node} is not isolated by {op}; isolate it before it is checked")
        manifest = self._manifest(facts, op)
        await self._end_orphans(manifest, node)
        facts = await self.view.node(node)
        if facts.jobs:
            raise RefusedError(f"{node} still has {', '.join(facts.jobs)}; evacuate it before it is checked")
        if not facts.responding:
            return CheckResult(node=node, suite=suite, ran=False, passed=False, detail="its kubelet does not answer")
        if facts.gpus < facts.gpus_expected:
            facts = await restart_plugin(self.api, self.view, facts)
        if facts.gpus < facts.gpus_expected:
            detail = f"{facts.gpus} of {facts.gpus_expected} GPUs are allocatable"
            return CheckResult(node=node, suite=suite, ran=True, passed=False, gpus=facts.gpus, detail=detail)
        if manifest is None:
            detail = "its allocatable GPUs were counted; no check pod is configured (`check` in fleet.yaml)"
            return CheckResult(node=node, suite=suite, ran=True, passed=True, gpus=facts.gpus, detail=detail)
        return await self._perform(facts, suite, manifest)

    def _manifest(self, facts: NodeFacts, op: str) -> Raw | None:
        """The configured pod, bound to the node. Raises InvalidInputError for a file that holds no pod."""
        path = self.view.settings.check
        if path is None:
            return None
        try:
            text = Path(path).read_text(encoding="utf-8")
            pod: Any = yaml.safe_load(text.replace("{gpus}", str(facts.gpus_expected)).replace("{node}", facts.node))
        except (OSError, yaml.YAMLError) as error:
            raise InvalidInputError(f"the check pod {path} cannot be read: {error}") from error
        if not isinstance(pod, dict) or pod.get("kind") != "Pod" or not (pod.get("spec") or {}).get("containers"):
            raise InvalidInputError(f"{path} holds no Pod with containers; correct `check` in fleet.yaml")
        meta, spec = pod.setdefault("metadata", {}), pod["spec"]
        labels = {**(meta.get("labels") or {}), CHECK_OP: op, CHECK_NODE: facts.node}
        pod["metadata"] = {
            **meta,
            "name": f"{CHECK_NAME}{op}-{facts.node}"[:63].rstrip("-."),
            "namespace": meta.get("namespace") or "default",
            "labels": labels,
        }
        field = {"key": "metadata.name", "operator": "In", "values": [facts.node]}
        term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
        spec["tolerations"] = [*(spec.get("tolerations") or []), *TOLERATED]
        spec["restartPolicy"] = "Never"
        spec["activeDeadlineSeconds"] = max(1, round(self.view.settings.check_seconds))
        return pod

    async def _end_orphans(self, manifest: Raw | None, node: str) -> None:
        """Ends check pods that a crashed worker, or an earlier check, left on the node."""
        if manifest is None:
            return
        namespace = manifest["metadata"]["namespace"]
        space = f"/api/v1/namespaces/{namespace}/pods"
        selector = [("labelSelector", f"{CHECK_OP},{CHECK_NODE}={node}")]
        end = time.monotonic() + GONE_WITHIN
        while True:
            left, _ = await self.api.list(f"checks on {node}", space, selector)
            if not left:
                return
            for raw in left:
                if "deletionTimestamp" not in raw["metadata"]:
                    await delete_pod(self.api, namespace, raw["metadata"]["name"], raw["metadata"]["uid"])
            if time.monotonic() > end:
                raise TemporaryError(f"an older check on {node} does not go away; looked at again", delay=10.0)
            await asyncio.sleep(0.3)

    async def _perform(self, facts: NodeFacts, suite: str, manifest: Raw) -> CheckResult:
        space = f"/api/v1/namespaces/{manifest['metadata']['namespace']}/pods"
        path = f"{space}/{manifest['metadata']['name']}"
        what = f"check of {facts.node}"
        answer = await self.api.write("POST", space, manifest)
        if answer.outcome not in {Outcome.DONE, Outcome.EXISTS, Outcome.UNKNOWN}:
            raise error_of_write(what, answer.outcome, answer.text, answer.retry_after)
        pod = await self._ended(what, path)
        said = ""
        if pod is not None and pod.exit_code is not None:
            said = await self.api.text(what, f"{path}/log", [("tailLines", "200")])
        if pod is not None:
            await delete_pod(self.api, pod.namespace, pod.name, pod.uid)
        rc = pod.exit_code if pod is not None and pod.exit_code is not None else -1
        why = "" if rc != -1 else (pod.reason or pod.waiting if pod is not None else "") or "it did not end in time"
        return judge(facts, suite, Ended(rc=rc, out=said, err=why, timed_out=pod is None))

    async def _ended(self, what: str, path: str) -> PodRecord | None:
        """The pod once it ended; None when it did not within the check's time."""
        end = time.monotonic() + self.view.settings.check_seconds + 30
        pause = 0.2
        while time.monotonic() < end:
            try:
                pod = pod_record(await self.api.get(what, path), self.view.settings.gpu_resource)
            except NotFoundError as error:
                raise TemporaryError(f"{what}: its pod was taken away; it is checked again", delay=2.0) from error
            if pod.ended:
                return pod
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, 3.0)
        return None

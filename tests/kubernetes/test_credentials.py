"""How the adapter logs in to a real apiserver: as a pod, by a context, and with tokens that are renewed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from activities.backends.kubernetes import credentials
from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.errors import PermanentError, TemporaryError
from tests.kubernetes import in_pod
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.lab import REPOSITORY, Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
SPACE = "gpu-runbooks"
ACCOUNTS = f"/api/v1/namespaces/{SPACE}/serviceaccounts"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def test_the_adapter_works_in_a_pod_with_the_account_that_is_mounted_there(gamma: Cluster) -> None:
    await kubeconfig_of(gamma, "repair")
    fleet = gamma.work / "fleet.yaml"
    fleet.write_text(f"version: 1\nclusters: {{{gamma.name}: {{kind: kubernetes, in_cluster: true}}}}\n")
    await gamma.apply(pod_manifest(gamma, fleet))
    await gamma.kubectl(
        "wait", "pod/worker", "-n", SPACE, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"
    )
    seen = json.loads(await gamma.kubectl("logs", "worker", "-n", SPACE))
    assert seen == {
        "host": server(gamma),
        "nodes": [gamma.node(1), gamma.node(2)],
        "isolated": in_pod.OP,
        "released": None,
        "missing": [],
    }
    await gamma.kubectl("delete", "pod", "worker", "-n", SPACE)


def pod_manifest(cluster: Cluster, fleet: Path) -> dict[str, Any]:
    """This machine's Python, this checkout, and the pod's own token and certificates, as its kubelet projects them.

    The lab has no kube-proxy, so the pod has the node's network and is told the apiserver's address, which the
    service's variables would give it elsewhere.
    """
    host, _, port = server(cluster).removeprefix("https://").partition(":")
    folders = {Path(p) for p in ("/usr", "/lib", "/lib64", str(REPOSITORY), sys.prefix, sys.base_prefix)}
    mounts = [f for f in sorted(folders) if not any(f != other and f.is_relative_to(other) for other in folders)]
    program = [sys.executable, str(Path(in_pod.__file__)), str(fleet), cluster.name, cluster.node(1)]
    env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "PYTHONPATH": str(REPOSITORY)}
    worker = {
        "name": "worker",
        "image": "lab/base:1",
        "imagePullPolicy": "Never",
        "command": program,
        "env": [{"name": key, "value": value} for key, value in {**env, "PYTHONDONTWRITEBYTECODE": "1"}.items()],
        "volumeMounts": [
            {"name": f"m{n}", "mountPath": str(path), "readOnly": True}
            for n, path in enumerate([*mounts, cluster.work])
        ],
    }
    spec = {
        "serviceAccountName": "repair",
        "hostNetwork": True,
        "restartPolicy": "Never",
        "containers": [worker],
        "volumes": [
            {"name": f"m{n}", "hostPath": {"path": str(path)}} for n, path in enumerate([*mounts, cluster.work])
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker", "namespace": SPACE}, "spec": spec}


def server(cluster: Cluster) -> str:
    return str(yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


async def test_the_context_that_is_named_decides_who_we_are(gamma: Cluster) -> None:
    users = {name: yaml.safe_load((await kubeconfig_of(gamma, name)).read_text()) for name in ("observe", "repair")}
    config = yaml.safe_load(gamma.kubeconfig.read_text())
    config["users"] = [{"name": name, "user": made["users"][0]["user"]} for name, made in users.items()]
    config["contexts"] = [{"name": f"as-{n}", "context": {"cluster": gamma.name, "user": n}} for n in users]
    config["current-context"] = "as-observe"
    path = gamma.root / "contexts.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    for context, who in ((None, "observe"), ("as-observe", "observe"), ("as-repair", "repair")):
        async with opened(gamma, KubernetesSettings(kubeconfig=str(path), context=context)) as api:
            assert await name_of(api) == f"system:serviceaccount:{SPACE}:{who}"
    async with opened(gamma, KubernetesSettings(kubeconfig=str(path), context="as-nobody")) as api:
        with pytest.raises(PermanentError, match=r"as-nobody.*correct fleet\.yaml"):
            await name_of(api)


@pytest.mark.parametrize("in_cluster", [True, False], ids=["pod", "tokenFile"])
async def test_a_token_that_was_renewed_is_taken_up_also_after_the_old_one_was_refused(
    gamma: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    await kubeconfig_of(gamma, "repair")
    token = tmp_path / "token"
    settings = settings_with(gamma, token, tmp_path, monkeypatch, in_cluster)
    async with opened(gamma, KubernetesSettings(kubeconfig=str(gamma.kubeconfig))) as admin:
        token.write_text(await bound_token(admin, "observe", "first"))
        backend = KubernetesBackend(gamma.name, settings)
        try:
            assert len(await backend.nodes(60)) == 2
            assert await name_of(backend.api) == f"system:serviceaccount:{SPACE}:observe"
            monkeypatch.setattr(credentials, "RENEW", 0.1)
            token.write_text(await bound_token(admin, "act", "second"))
            await until(lambda: name_of(backend.api), lambda name: name.endswith(":act"), 10)

            monkeypatch.setattr(credentials, "RENEW", 3600.0)
            await gamma.kubectl("delete", "secret", "second", "-n", SPACE)
            await until(lambda: refused(backend.api), bool, 60)  # the apiserver remembers a good token for 10 s
            token.write_text(await bound_token(admin, "repair", "third"))
            await until(lambda: name_of(backend.api), lambda name: name.endswith(":repair"), 10)
            await gamma.kubectl("cordon", gamma.node(1))
            await until(lambda: backend.nodes(60), lambda seen: any(facts.drained for facts in seen), 30)
        finally:
            await gamma.kubectl("uncordon", gamma.node(1))
            await backend.close()
            await gamma.kubectl("delete", "secret", "first", "third", "-n", SPACE)


def settings_with(
    cluster: Cluster, token: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> KubernetesSettings:
    """Both ways to log in by a file that somebody else renews."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    if in_cluster:
        host, _, port = server(cluster).removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        ca = config["clusters"][0]["cluster"]["certificate-authority"]
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", ca)
        return KubernetesSettings()
    config["users"][0]["user"] = {"tokenFile": str(token)}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return KubernetesSettings(kubeconfig=str(path))


async def bound_token(admin: KubeApi, account: str, secret: str) -> str:
    """A token that is good as long as that Secret is there."""
    made = await admin.write("POST", f"/api/v1/namespaces/{SPACE}/secrets", {"metadata": {"name": secret}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made.body["metadata"]["uid"]}
    order = {"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}}
    given = await admin.write("POST", f"{ACCOUNTS}/{account}/token", order)
    return str(given.body["status"]["token"])


async def name_of(api: KubeApi) -> str:
    """Who the apiserver takes us for."""
    answer = await api.write("POST", WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    if answer.text.startswith("401"):
        raise TemporaryError(answer.text, 0.1)
    return str(answer.body["status"]["userInfo"]["username"])


async def refused(api: KubeApi) -> bool:
    try:
        await name_of(api)
    except TemporaryError:
        return True
    return False


@asynccontextmanager
async def opened(cluster: Cluster, settings: KubernetesSettings) -> AsyncIterator[KubeApi]:
    api = KubeApi(cluster.name, settings)
    try:
        yield api
    finally:
        await api.close()
        await asyncio.sleep(0)

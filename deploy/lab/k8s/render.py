"""What a controller needs in the apiserver, from its module's own kustomization: CRDs and webhook configurations.

The rest of a kustomization (Deployment, Service, RBAC) is for a controller that runs in a pod; those of the lab are
plain processes. So every webhook is called by URL, with two words that the start of a cluster fills in: `@PORT@`,
where the controller of that cluster listens, and `@CA@`, the base64 of the certificate that signed its own.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Object = dict[str, Any]

CRDS, WEBHOOKS = "crds.json", "webhooks.json"
_CRD = "CustomResourceDefinition"
_OTHERS = ("Namespace", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def render(kubectl: Path, folders: Iterable[Path], out: Path) -> None:
    """Writes `crds.json` and, where there is something for it, `webhooks.json`.

    Raises subprocess.CalledProcessError, with what kubectl said in `stderr`.
    """
    objects = [thing for folder in folders for thing in _rendered(kubectl, folder)]
    for file, kinds in ((CRDS, (_CRD,)), (WEBHOOKS, _OTHERS)):
        if items := [_by_url(thing) for thing in objects if thing["kind"] in kinds]:
            (out / file).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def _rendered(kubectl: Path, folder: Path) -> Iterator[Object]:
    """Every object of a kustomization. The folder is absolute: kustomize takes `github.com/...` for a remote one."""
    text = _kubectl(kubectl, "kustomize", str(folder))
    text = _kubectl(kubectl, "patch", "--local", "-f", "-", "--type", "merge", "-p", "{}", "-o", "json", given=text)
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        thing, at = decoder.raw_decode(text, at)
        yield thing
        at += len(text[at:]) - len(text[at:].lstrip())


def _kubectl(kubectl: Path, *words: str, given: str = "") -> str:
    """Its output. It reaches no cluster, and fetches nothing."""
    environment = {**os.environ, "KUBECONFIG": os.devnull, "GIT_ALLOW_PROTOCOL": "file"}
    done = subprocess.run([kubectl, *words], input=given, capture_output=True, text=True, env=environment, check=True)
    return done.stdout


def _by_url(thing: Object) -> Object:
    """The same object with its webhooks, those of a CRD's conversion too, called by URL."""
    spec = thing.get("spec", {})
    for hook in (*thing.get("webhooks", ()), spec.get("conversion", {}).get("webhook")):
        if hook:
            path = hook["clientConfig"].get("service", {}).get("path", "/")
            hook["clientConfig"] = {"url": f"https://127.0.0.1:@PORT@{path}", "caBundle": "@CA@"}
    return thing

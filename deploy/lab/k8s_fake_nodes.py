#!/usr/bin/env python3
"""Node objects that kwok answers for: many nodes, no kubelet. Run by ``k8s_lab.sh fake-nodes``."""

import argparse
import http.client
import json
import re
import ssl
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 4
"""Connections; the apiserver shares the machine's cores, more are no faster."""
CREATED, EXISTS = 201, 409


class Api:
    """Address, certificate and token of the lab's own kubeconfig, whose form the lab wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        text = kubeconfig.read_text(encoding="utf-8")
        self.host, self.port = re.findall(r"https://([^:\"]+):(\d+)", text)[0]
        self.token = re.findall(r"token: ([0-9a-f]+)", text)[0]
        self.tls = ssl.create_default_context(cafile=re.findall(r"certificate-authority: ([^}]+)}", text)[0])

    def create(self, names: list[str], gpus: int) -> None:
        """One connection for all of them. Raises RuntimeError with the apiserver's words."""
        connection = http.client.HTTPSConnection(self.host, int(self.port), context=self.tls, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        for name in names:
            connection.request("POST", "/api/v1/nodes", json.dumps(node(name, gpus)), headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status not in (CREATED, EXISTS):
                raise RuntimeError(f"{name}: {answer.status} {body.decode(errors='replace')[:200]}")
        connection.close()


def node(name: str, gpus: int) -> dict[str, object]:
    """A node of 8 CPUs; the taint keeps pods that mean real nodes away from it."""
    resources = {"cpu": "8", "memory": "32Gi", "pods": "50", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources, "nodeInfo": node_info()},
    }


def node_info() -> dict[str, str]:
    """What the apiserver wants of every node; the boot id is one of its own."""
    words = ("kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion")
    ids = {key: str(uuid.uuid4()) for key in ("bootID", "machineID", "systemUUID")}
    return {**dict.fromkeys(words, "kwok"), **ids, "operatingSystem": "linux", "architecture": "amd64"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--prefix", required=True, help="names are PREFIX1, PREFIX2, ...")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=8)
    given = parser.parse_args()
    api = Api(given.kubeconfig)
    names = [f"{given.prefix}{number}" for number in range(1, given.count + 1)]
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda at: api.create(names[at::AT_ONCE], given.gpus), range(AT_ONCE)))
    except (OSError, RuntimeError) as error:
        print(f"fake nodes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

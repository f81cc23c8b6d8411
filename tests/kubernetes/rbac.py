"""What `deploy/kubernetes/rbac.yaml` grants."""

from pathlib import Path
from typing import NamedTuple

import yaml

RBAC = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "rbac.yaml"
SINCE = "gpu-runbooks.io/since-release"
"""Annotation of a ClusterRole: the first release whose apiserver asks for its rights."""


class Granted(NamedTuple):
    """One verb on one resource that a role of rbac.yaml grants."""

    role: str
    group: str
    resource: str
    verb: str
    since: tuple[int, ...]
    """First release that asks for it; empty where all do."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"

    def rule(self) -> dict[str, list[str]]:
        """As a rule of a role of its own."""
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}


def granted() -> tuple[Granted, ...]:
    """Every right of every role in rbac.yaml, in the file's order."""
    found = []
    for role in yaml.safe_load_all(RBAC.read_text()):
        if role["kind"] != "ClusterRole":
            continue
        meta = role["metadata"]
        since = tuple(int(part) for part in meta.get("annotations", {}).get(SINCE, "").split(".") if part)
        found += [
            Granted(meta["name"], group, resource, verb, since)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
    return tuple(found)

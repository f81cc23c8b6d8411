"""What is read out of an audit log, and that the adapter's list of rights is that of rbac.yaml."""

import json
from collections import Counter
from pathlib import Path

import pytest

from activities.backends.kubernetes.rights import OBSERVING, RIGHTS
from tests.kubernetes.rbac import granted
from tests.kubernetes.used_rights import VARIABLE, collect, judge, used_in


def event(verb: str, resource: str, role: str = "gpu-runbooks-act", decision: str = "allow", **more: str) -> str:
    about = {"resource": resource, "namespace": "default", "apiVersion": "v1", **more}
    reason = f'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "{role}" to ServiceAccount "act/gpu-runbooks"'
    notes = {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason}
    return json.dumps({"verb": verb, "objectRef": about, "annotations": notes}) + "\n"


def test_the_adapter_asks_for_the_rights_of_rbac_yaml_and_no_others() -> None:
    assert {str(right) for right in RIGHTS} == {str(right) for right in granted()}
    observe = {str(right) for right in granted() if right.role == "gpu-runbooks-observe"}
    assert {str(right) for right in OBSERVING} == observe


def test_no_right_is_granted_twice_and_none_by_a_wildcard() -> None:
    twice = [
        str(right) for right, count in Counter((g.group, g.resource, g.verb) for g in granted()).items() if count > 1
    ]
    assert not twice
    assert not [str(g) for g in granted() if "*" in f"{g.group}{g.resource}{g.verb}"]


def test_a_call_counts_for_the_role_that_allowed_it() -> None:
    lines = [
        event("patch", "jobs", apiGroup="batch"),
        event("patch", "jobs", apiGroup="batch", subresource="status"),
        event("list", "nodes", role="gpu-runbooks-observe"),
        event("delete", "nodes", decision="forbid"),
        '{"verb": "create", "objectRef": {"resource": "selfsubjectaccessreviews"}, "annotations": {}}\n',
        '{"verb": "delete", "objectR',
    ]
    assert used_in(lines) == {
        ("gpu-runbooks-act", "patch jobs.batch"),
        ("gpu-runbooks-act", "patch jobs/status.batch"),
        ("gpu-runbooks-observe", "list nodes"),
    }


def test_what_several_clusters_used_is_added_up_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "used"
    monkeypatch.setenv(VARIABLE, str(file))
    rights = [g for g in granted() if not g.since]
    for number, part in enumerate((rights[:5], rights[5:-1])):
        folder = tmp_path / str(number)
        (folder / "log").mkdir(parents=True)
        lines = []
        for g in part:
            resource, _, sub = g.resource.partition("/")
            lines.append(event(g.verb, resource, g.role, apiGroup=g.group, subresource=sub))
        (folder / "log" / "audit.log").write_text("".join(lines))
        collect(folder)
    assert judge(file, (1, 34)) == ((f"{rights[-1].role}: {rights[-1]}",), ())
    newer = [g for g in granted() if g.since]
    assert set(judge(file, (9, 0)).unused) == {f"{g.role}: {g}" for g in (rights[-1], *newer)}


def test_rights_for_kinds_that_no_cluster_had_are_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "used"
    file.write_text("".join(f"{g.role} {g}\n" for g in granted() if g.group in {"", "batch", "storage.k8s.io"}))
    found = judge(file, (1, 34))
    assert found.unused == ()
    assert "jobset.x-k8s.io" in found.unseen
    with file.open("a") as more:
        more.write("gpu-runbooks-observe list jobsets.jobset.x-k8s.io\n")
    seen = judge(file, (1, 34))
    assert "jobset.x-k8s.io" not in seen.unseen
    assert any(line.endswith("create jobsets.jobset.x-k8s.io") for line in seen.unused)

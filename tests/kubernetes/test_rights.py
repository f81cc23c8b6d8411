"""Each right of rbac.yaml, taken away from an account on a real apiserver: the doctor names it, and no other.

The apiserver serves the resources of all kinds of jobs, without their controllers: rights for a kind that a cluster
has not are not asked for there.
"""

import asyncio
from typing import Any

import pytest

from activities.backends.kubernetes import kueue, reboot_node
from activities.backends.kubernetes.api import KubeApi
from activities.backends.kubernetes.kinds.all import KINDS
from activities.backends.kubernetes.rights import ACTING, RIGHTS
from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.policy import Step
from fleet.policy_file import parse_policy
from tests.kubernetes.accounts import account_with, kubeconfig_with
from tests.kubernetes.lab import Cluster
from tests.kubernetes.rbac import Granted, granted
from tests.slurm.waiting import until
from workers.doctor_checks import Check
from workers.doctor_cluster import look_at_cluster

pytestmark = pytest.mark.kubernetes
NAMESPACE = "less-rights"
TOGETHER = 8
"""Accounts among which the rights for further kinds are spread: a doctor asks for each right, so one account for each
would be ten thousand questions."""
AT_ONCE = 4
"""Doctors; each makes connections of its own."""


async def test_the_doctor_names_each_right_that_an_account_lacks_and_no_other(gamma: Cluster) -> None:
    await serve_all_kinds(gamma)
    rights = granted()
    lost = taken_away()
    await make_accounts(gamma, {name: [r for r in rights if r not in without] for name, without in lost.items()})
    tokens = await tokens_of(gamma, [*lost])
    gate = asyncio.Semaphore(AT_ONCE)

    async def named(name: str) -> set[str]:
        async with gate:
            return await lacking(gamma, name, tokens[name])

    async def settled(name: str) -> set[str]:
        return await until(lambda: named(name), lambda seen: len(seen) <= len(lost[name]), 20)

    found = await asyncio.gather(*(settled(name) for name in lost))
    assert dict(zip(lost, found, strict=True)) == {n: {str(r) for r in without} for n, without in lost.items()}


def taken_away() -> dict[str, tuple[Granted, ...]]:
    """Accounts, and what each has not: one right each of those that every cluster asks for, some together of those
    for further kinds of jobs. Each right is taken away once, and given everywhere else."""
    further = {str(right) for right in RIGHTS if right.optional}
    alone = [right for right in granted() if str(right) not in further]
    kinds = [right for right in granted() if str(right) in further]
    made = {f"without-{number}": (right,) for number, right in enumerate(alone)}
    made |= {f"without-kinds-{at}": tuple(kinds[at::TOGETHER]) for at in range(TOGETHER)}
    return made


async def test_an_account_with_every_right_lacks_none_and_one_without_any_lacks_all(gamma: Cluster) -> None:
    await serve_all_kinds(gamma)
    await make_accounts(gamma, {"with-all": [*granted()], "with-none": []})
    tokens = await tokens_of(gamma, ["with-all", "with-none"])
    await until(lambda: lacking(gamma, "with-all", tokens["with-all"]), lambda found: not found, 20)
    assert await lacking(gamma, "with-none", tokens["with-none"]) == {str(right) for right in granted()}


async def test_an_account_that_may_only_observe_fails_nothing_and_hears_what_it_cannot_do(gamma: Cluster) -> None:
    await serve_all_kinds(gamma)
    mine = [right for right in granted() if right.role == "gpu-runbooks-observe"]
    await make_accounts(gamma, {"observer": mine})
    tokens = await tokens_of(gamma, ["observer"])

    async def told(**modes: str) -> list[Check]:
        return await diagnosed(gamma, "observer", tokens["observer"], **modes)

    checks = await until(told, lambda found: all(check.grade != "fail" for check in found), 20)
    (seen,) = [check for check in checks if check.name == "rights"]
    assert seen.grade == "warn"
    assert {right.without for right in ACTING} == set(seen.text.partition(": ")[2].split("; "))
    watched_only = await told(**dict.fromkeys(Step, "observe"))
    assert [check.grade for check in watched_only if check.name == "rights"] == ["ok"]


async def serve_all_kinds(cluster: Cluster) -> None:
    """Definitions of the resources, and no more."""
    versions = {kind.group: kind.api_version.partition("/")[2] for kind in KINDS}
    versions |= {kueue.GROUP: kueue.VERSIONS[0], reboot_node.GROUP: reboot_node.VERSION}
    resources = {(right.group, right.resource.partition("/")[0]) for right in RIGHTS if right.optional}
    await cluster.apply(*(definition(group, plural, versions[group]) for group, plural in sorted(resources)))
    await cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")


def definition(group: str, plural: str, version: str) -> dict[str, Any]:
    """A CustomResourceDefinition that takes any object."""
    shape = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": shape}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural[:-1], "kind": plural.capitalize()},
            "versions": [{**served, "subresources": {"status": {}}}],
        },
    }


async def make_accounts(cluster: Cluster, accounts: dict[str, list[Granted]]) -> None:
    """In a namespace of their own: what they do is no use of a right by a runbook."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    made = [manifest for name, rights in accounts.items() for manifest in account_with(name, NAMESPACE, rights)]
    await cluster.apply(space, *made)


async def tokens_of(cluster: Cluster, accounts: list[str]) -> dict[str, str]:
    """A token of each account, as a pod gets its own."""
    admin = KubeApi(cluster.name, KubernetesSettings(kubeconfig=str(cluster.kubeconfig)))
    try:
        order = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        given = await asyncio.gather(*(admin.write("POST", f"{path}/{name}/token", order) for name in accounts))
    finally:
        await admin.close()
    return {name: answer.body["status"]["token"] for name, answer in zip(accounts, given, strict=True)}


async def lacking(cluster: Cluster, account: str, token: str) -> set[str]:
    """Rights that `runbook doctor` names as missing."""
    failed = [check for check in await diagnosed(cluster, account, token) if check.grade == "fail"]
    assert all(check.name in {"probe", "rights", "nodes"} for check in failed), failed
    return {check.text.partition(":")[0] for check in failed if check.name == "rights"}


async def diagnosed(cluster: Cluster, account: str, token: str, **modes: str) -> list[Check]:
    """What `runbook doctor` says of the cluster with that account; `modes` of steps in `fleet.yaml`."""
    kubeconfig = kubeconfig_with(cluster, account, token)
    policy = parse_policy(
        f"version: 1\nclusters:\n  {cluster.name}: {{kind: kubernetes, kubeconfig: {kubeconfig}}}\n"
        f"modes: {{{', '.join(f'{step}: {mode}' for step, mode in modes.items())}}}\n",
        "fleet.yaml",
    )
    return [*await look_at_cluster(cluster.name, policy, cluster.root)]

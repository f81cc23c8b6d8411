"""Answers that are late, lost or cut, on the way to a real apiserver: the right end state, once."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import yaml

from activities.backends.kubernetes import marks
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.backends.kubernetes.settings import KubernetesSettings
from fleet.errors import AmbiguousError, TemporaryError
from fleet.orders import JobSpec
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.faults import Order, Proxy, Spoil, spoiled
from tests.kubernetes.lab import Cluster
from tests.slurm.waiting import until

pytestmark = pytest.mark.kubernetes
OP = "opaaaaa"
TAKEN = (Spoil.BROKEN, Spoil.RESET, Spoil.HALF)


class House(NamedTuple):
    """Our backend behind the proxy."""

    lab: Cluster
    proxy: Proxy
    backend: KubernetesBackend
    node: str

    async def writes_of_the_mark(self) -> int:
        return sum(method == "PATCH" and path.endswith(self.node) for method, path in self.proxy.taken)


@pytest.fixture
async def house(gamma: Cluster) -> AsyncIterator[House]:
    async with spoiled(gamma, await kubeconfig_of(gamma, "repair")) as (proxy, path):
        backend = KubernetesBackend(gamma.name, KubernetesSettings(kubeconfig=str(path)))
        try:
            yield House(gamma, proxy, backend, gamma.node(1))
            proxy.orders.clear()
            await backend.give_back_all()
            await gamma.kubectl("delete", "jobs", "--all", "--wait=false")
        finally:
            await backend.close()


@pytest.mark.parametrize("spoil", [*TAKEN, Spoil.AWAY, Spoil.UNTAKEN])
async def test_an_isolation_whose_answer_is_spoiled_is_read_back_and_made_once(house: House, spoil: Spoil) -> None:
    house.proxy.orders.append(Order("PATCH", f"/nodes/{house.node}", spoil))
    facts = await house.backend.isolate(house.node, OP, "sick")
    assert (facts.op, facts.drained) == (OP, True)
    assert await house.writes_of_the_mark() == 1
    taints = [t for t in (await house.lab.get("node", house.node))["spec"]["taints"] if t["key"] == marks.ISOLATED]
    assert [t["value"] for t in taints] == [OP]


async def test_a_busy_apiserver_is_obeyed_and_nothing_is_written(house: House) -> None:
    house.proxy.orders.append(Order("PATCH", f"/nodes/{house.node}", Spoil.BUSY))
    with pytest.raises(TemporaryError) as raised:
        await house.backend.isolate(house.node, OP, "sick")
    assert raised.value.delay == 3.0
    assert await house.writes_of_the_mark() == 0
    assert not (await house.backend.node(house.node)).drained


@pytest.mark.parametrize("spoil", [*TAKEN, Spoil.AWAY, Spoil.UNTAKEN])
async def test_a_submit_whose_answer_is_spoiled_makes_one_job(house: House, spoil: Spoil) -> None:
    made = house.lab.training_job("once")
    spec = JobSpec(job=f"key-{spoil.name.lower()}", name="once", script=yaml.safe_dump(made))
    house.proxy.orders.append(Order("POST", "/jobs", spoil))
    try:
        job = await house.backend.submit(spec)
    except AmbiguousError:
        assert spoil in {Spoil.AWAY, Spoil.UNTAKEN}
        job = await house.backend.submit(spec)
    assert job.key == spec.job
    assert [m for m, path in house.proxy.taken if path.endswith("/jobs")] == ["POST"]
    assert [j.native_id for j in await house.backend.jobs(0) if j.key == spec.job] == [job.native_id]


@pytest.mark.parametrize("spoil", [Spoil.BUSY, Spoil.AWAY, Spoil.BROKEN, Spoil.HALF])
async def test_a_spoiled_read_is_temporary_and_asked_once(house: House, spoil: Spoil) -> None:
    await house.backend.nodes(0)
    before = house.backend.api.calls["GET"]
    # not a reset: aiohttp asks again when a kept connection turns out dead before any answer (GET and DELETE)
    house.proxy.orders.append(Order("GET", "/nodes", spoil))
    with pytest.raises(TemporaryError):
        await house.backend.nodes(0)
    assert house.backend.api.calls["GET"] - before <= 3, "jobs, nodes and pods, once"
    assert len(await house.backend.nodes(0)) == 2


async def test_a_watch_that_is_cut_goes_on_from_where_it_was(house: House) -> None:
    assert len(await house.backend.nodes(60)) == 2
    mirror = house.backend.view.node_mirror
    house.proxy.orders.append(Order("WATCH", "", Spoil.RESET))
    await house.lab.kubectl("annotate", "node", house.node, "example.com/cut=1")
    await until(lambda: _cut(house.proxy), bool, 30)
    await house.lab.kubectl("cordon", house.node)
    await until(lambda: house.backend.nodes(60), lambda ns: any(n.foreign_drain for n in ns), 30)
    assert mirror.lists == 1, "bookmarks and versions: nothing was listed again"
    await house.lab.kubectl("uncordon", house.node)
    await house.lab.kubectl("annotate", "node", house.node, "example.com/cut-")


async def _cut(proxy: Proxy) -> bool:
    return not proxy.orders

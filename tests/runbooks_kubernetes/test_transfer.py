"""A Kubernetes cluster dies under a job, and it trains on another one by the manifest saved at its adoption."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import workflows.attempts
import workflows.base
from clients.embedded import ServerInfo
from fleet.identity import TOKEN_PREFIX
from fleet.ledger import Rung
from fleet.model import Phase, ReceiptGrade
from fleet.people import Choice
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.lab import NODE_GRACE, Cluster, clusters, why_not
from tests.require import missing
from tests.runbooks_kubernetes.stage import Stage
from tests.runbooks_slurm.training import complete_of

pytestmark = pytest.mark.kinds
MOVE = "job/train/transfer/2"
_numbers = itertools.count(1)


class Pair(Stage):
    """A stage on gamma with delta beside it; each cluster's shared folder is a site of its own."""

    delta: Cluster
    delta_config: Path
    """Set on the class before a stage is opened, as is the cluster."""
    sites = ("at-gamma", "at-delta")

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.lab.name, self.delta.name)

    def other_clusters(self) -> list[str]:
        rows = ["  delta:", "    kind: kubernetes", f"    kubeconfig: {self.delta_config}"]
        return [*rows, f"    node_down_after: {NODE_GRACE:.0f}s", "    site: at-delta"]

    def write_policy(self, **limits: str) -> None:
        super().write_policy(cluster_lost_after="5s", **limits)
        text = self.policy_file.read_text()
        text = text.replace("  gamma:\n", "  gamma:\n    site: at-gamma\n")
        rows = [f"  at-{one.name}: {{mount: {one.work}}}" for one in (self.lab, self.delta)]
        self.policy_file.write_text("\n".join([text, "sites:", *rows]) + "\n")


@pytest.fixture
async def pair(temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Two nodes each; nothing of them is left afterwards."""
    if (why := why_not()) is not None:
        missing("kubernetes", why)
    monkeypatch.setattr(workflows.attempts, "LOOK_EVERY", timedelta(seconds=10))
    monkeypatch.setattr(workflows.attempts, "LOOK_BRIEFLY", timedelta(seconds=3))
    monkeypatch.setattr(workflows.base, "ASK_BRIEFLY", timedelta(seconds=4))
    async with clusters("gamma", "delta", nodes=2) as (gamma, delta):
        Pair.delta, Pair.delta_config = delta, await kubeconfig_of(delta, "repair")
        made = await Pair.open(temporal_server.address, tmp_path, f"pair-{next(_numbers)}", gamma)
        assert isinstance(made, Pair)
        try:
            await made.start_worker()
            yield made
        finally:
            await made.close()


async def apply(pair: Pair, root: Path) -> str:
    """A researcher's `kubectl apply` of a training that takes its checkpoint root from where it is told, and
    whose pods see the storage of either cluster where it is mounted."""
    made = pair.lab.training_job("train")
    pod = made["spec"]["template"]["spec"]
    [rank] = pod["containers"]
    rank["volumeMounts"].append({"name": "there", "mountPath": str(pair.delta.work)})
    pod["volumes"].append({"name": "there", "hostPath": {"path": str(pair.delta.work)}})
    rank["args"] = [word for word in rank["args"] if word != "--no-generation-check"]
    rank["args"][rank["args"].index("--checkpoint-dir") + 1] = "$(GPU_RUNBOOKS_CHECKPOINT)"
    rank["env"].append({"name": "GPU_RUNBOOKS_CHECKPOINT", "value": str(root)})
    tokens = {"job": "train", "checkpoint": str(root), "total-steps": "100000", "transfer": "yes"}
    tokens |= {"generation-check": "yes"}
    made["metadata"]["labels"] = {f"{TOKEN_PREFIX}supervise": "true"}
    made["metadata"]["annotations"] = {f"{TOKEN_PREFIX}{key}": value for key, value in tokens.items()}
    await pair.lab.apply(made)
    return "job/default/train"


async def test_a_whole_cluster_dies_and_its_job_trains_on_the_other_one_and_what_comes_back_is_ended(
    pair: Pair,
) -> None:
    gamma, delta = pair.lab, pair.delta
    root = gamma.checkpoints("train")
    native_id = await apply(pair, root)
    await pair.trains("train", 1)
    await pair.held_and_saved(native_id)

    await gamma.lab("api-kill")
    for number in (1, 2):
        await gamma.lab("node-crash", gamma.node(number))
    question = await pair.question(MOVE)
    assert Choice.ATTEST in question.options
    assert await gamma.ranks_alive("train") == 0
    await pair.answer(question, Choice.ATTEST)

    async def moved() -> bool:
        view = await pair.view_if("job/train")
        last = view.ledger.last if view and view.ledger else None
        return last is not None and last.cluster == "delta" and bool(last.progress.step)

    await pair.until(moved, "it trains on delta")
    view = await pair.view("job/train")
    assert view.ledger is not None
    first, second = view.ledger.attempts
    assert first.receipt is not None
    assert first.receipt.grade() is ReceiptGrade.ATTESTED
    assert second.rung is Rung.ACROSS_CLUSTERS
    assert second.progress.resumed_from == complete_of(root, "0.0")[-1]
    assert await delta.ranks_alive("train") == 2

    await gamma.lab("api-start")
    for number in (1, 2):
        await gamma.lab("power-on", gamma.node(number))

    async def ended() -> bool:
        return (await pair.backend.job(native_id)).phase in {Phase.CANCELLED, Phase.ABSENT}

    await pair.until(ended, "what it left is ended")
    assert await gamma.ranks_alive("train") == 0
    assert await delta.ranks_alive("train") == 2

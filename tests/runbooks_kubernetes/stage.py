"""What a scenario has in its hands: a real cluster, the runbooks over it, a person's commands, and the truth."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from activities.backends.factory import make_backend
from activities.backends.kubernetes.backend import KubernetesBackend
from activities.runtime import Runtime
from activities.store import AsyncHistoryStore
from clients.connection import connect
from fleet.identity import TOKEN_PREFIX
from fleet.model import NativeJob
from fleet.policy import Step
from fleet.policy_file import parse_policy
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.lab import NODE_GRACE, Cluster, rank_pids
from tests.real_stage import RealStage
from tests.runbooks_kubernetes.kinds import JOB, Kind
from tests.workflows.stage import make_namespace
from workers.worker import make_workers, start_watching, store_url

LIMITS = {"settle": "5s", "in_place_delays": "[0s]", "checkpoint_grace": "20s", "run_timeout": "2m"}
PATIENCE = 120.0
"""Seconds in which a condition must come true; far more than it takes on an idle machine."""
RESTART = b"GPU_RUNBOOKS_RESTART="


class Stage(RealStage):
    """One scenario's world."""

    patience = ends_within = PATIENCE
    look_every = 0.3

    def __init__(self, client: Client, folder: Path, lab: Cluster, kubeconfig: Path) -> None:
        super().__init__(client, folder)
        self.lab = lab
        self._working = AsyncExitStack()
        self._kubeconfig = kubeconfig
        self.write_policy()
        policy = parse_policy(self.policy_file.read_text(), str(self.policy_file))
        backend = make_backend(lab.name, policy, folder)
        assert isinstance(backend, KubernetesBackend)
        self.backend = backend
        """The test's own eyes; the worker has another."""

    @classmethod
    async def open(cls, address: str, folder: Path, namespace: str, lab: Cluster) -> "Stage":
        """The worker has the rights of the account `repair` and no more."""
        client = await connect(address, await make_namespace(address, namespace))
        return cls(client, folder, lab, await kubeconfig_of(lab, "repair"))

    sites: tuple[str, ...] = ()
    """Sites whose data the worker moves."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of all that the worker works for."""
        return (self.lab.name,)

    def power(self) -> dict[str, tuple[str, ...]]:
        """Argument lists of the power hook, by `off`, `on`, `status`."""
        return self.lab.power()

    def other_clusters(self) -> list[str]:
        """Lines of the fleet file for clusters beside the lab's."""
        return []

    def write_policy(self, **limits: str) -> None:
        """Every step automatic; `limits` change those of the tests."""
        rows = ["version: 1", "clusters:", *self.other_clusters(), f"  {self.lab.name}:", "    kind: kubernetes"]
        rows += [f"    kubeconfig: {self._kubeconfig}", f"    node_down_after: {NODE_GRACE:.0f}s"]
        rows += [f"    check: {self.lab.place.check_pod(self.lab.name)}", "    power:"]
        for verb, words in self.power().items():
            rows.append(f"      '{verb}': [{', '.join(repr(word) for word in words)}]")
        rows.append("modes: {" + ", ".join(f"{step}: auto" for step in Step) + "}")
        rows += ["limits:", *(f"  {key}: {value}" for key, value in (LIMITS | limits).items())]
        self.policy_file.write_text("\n".join(rows) + "\n")

    async def start_worker(self) -> None:
        """Runbooks and the cluster, as the real worker wires them."""
        runtime = Runtime(
            policy_file=self.policy_file,
            client=self.client,
            make_backend=make_backend,
            store=await AsyncHistoryStore.open(store_url(self.policy_file, self.folder)),
            unsigned_ok=True,
        )
        self._working.push_async_callback(runtime.close)
        for worker in make_workers(runtime, self.clusters, runbooks=True, sites=self.sites):
            await self._working.enter_async_context(worker)
        await start_watching(self.client, self.clusters)

    async def close(self) -> None:
        """Ends the worker and every runbook."""
        try:
            await self._working.aclose()
        finally:
            await self.backend.close()
            async for row in self.client.list_workflows('ExecutionStatus="Running"'):
                try:
                    await self.client.get_workflow_handle(row.id).terminate()
                except RPCError:
                    continue

    # -- jobs

    async def apply(
        self, job: str, *words: str, steps: int = 100_000, step_time: float = 0.1, kind: Kind = JOB, **more: Any
    ) -> str:
        """A researcher's `kubectl apply` of a job that asks for supervision; returns its native id. `words` go to the
        training program, `more` to what makes the manifest."""
        objects = kind.objects(self.lab, job, **more)
        made = objects[-1]
        made["metadata"]["labels"] |= {f"{TOKEN_PREFIX}supervise": "true"}
        tokens = {"job": job, "total-steps": str(steps), "generation-check": "yes"}
        tokens |= {"checkpoint-signal": "USR1"} if kind.saves_on_signal else {}
        made["metadata"].setdefault("annotations", {}).update({f"{TOKEN_PREFIX}{k}": v for k, v in tokens.items()})

        def change(own: list[str]) -> list[str]:
            own = [word for word in own if word != "--no-generation-check"]
            own[own.index("--step-time") + 1] = str(step_time)
            own[own.index("--steps") + 1] = str(steps)
            return [*own, *words]

        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{TOKEN_PREFIX}generation']"}}
        kind.change(objects, change, {"name": RESTART.decode()[:-1], "valueFrom": source})
        await self.lab.apply(*objects)
        return f"{kind.kind.word}/default/{job}"

    async def train(self) -> NativeJob:
        """A job `train` that is supervised, held and has a checkpoint."""
        native_id = await self.apply("train")
        await self.trains("train", 1)
        await self.held_and_saved(native_id)
        return await self.backend.job(native_id)

    async def held_and_saved(self, native_id: str) -> None:
        """Waits until its runbook holds it and it has a checkpoint."""

        async def there() -> bool:
            native = await self.backend.job(native_id)
            return native.held and (await self.backend.progress(native_id, native.restarts)).saved is not None

        await self.until(there, "it is held and has a checkpoint")

    def attempts_alive(self, job: str) -> dict[int, int]:
        """The truth: attempt -> living ranks, by the environment of the processes."""
        found: dict[int, int] = {}
        for pid in rank_pids(self.lab.checkpoints(job)):
            try:
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            counts = [int(w.removeprefix(RESTART) or b"0") for w in words if w.startswith(RESTART)]
            attempt = counts[0] if counts else 0
            found[attempt] = found.get(attempt, 0) + 1
        return found

    async def scene(self) -> str:
        return f"\n{await self.stories()}"

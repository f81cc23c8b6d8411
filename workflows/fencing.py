"""The fence of a recovery: no second attempt before there is a receipt for every node of the old one."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.ledger import Span, Stage
    from fleet.model import FenceReceipt, NativeJob, NodeReceipt
    from fleet.orders import StopQuery
    from fleet.runbooks import ReceiptNote, RecoveryInput, Signal
    from workflows.base import Book, StepFailed

PROVE_PATIENCE = 20.0
"""Seconds that one asking for receipts lasts before the node's own runbook is asked for a fence."""
FENCE_WAITS = (15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds between two askings while a node's runbook works; the last one repeats."""


class Fencing(Book):
    """What is known of the old attempt's end, and the steps that prove it."""

    inp: RecoveryInput
    native: NativeJob
    now_in: str

    def __init__(self) -> None:
        super().__init__()
        self.spans: tuple[Span, ...] = ()
        self.receipts: dict[str, NodeReceipt] = {}
        self.stopped_at: float | None = None
        self.ordered = False
        self.settling: set[str] = set()
        """Unproven nodes that only need time."""
        self.settles_by: dict[str, float] = {}
        self.fences: set[str] = set()
        """Nodes whose runbook was asked for a fence."""

    @workflow.signal(name=Signal.RECEIPT)
    def receipt(self, note: ReceiptNote) -> None:
        """A node's runbook proved it clean."""
        if note.cluster == self.inp.cluster and note.receipt.node in self.inp.old.nodes:
            self.receipts[note.receipt.node] = note.receipt

    def stage(self, stage: Stage, start: float, note: str = "") -> None:
        """Books the time from `start` to now."""
        self.spans = (*self.spans, Span(stage=stage, start=start, end=self.now(), note=note))

    async def fence(self) -> bool:
        """No second attempt without a receipt for every node of the old one. False when the cluster turns out to have
        forgotten the stop: then nothing is proven and the attempt is stopped again."""
        self.at("fence", waits=f"proof that no rank is left on {', '.join(self.inp.old.nodes)}", then="start")
        start, waits = self.now(), list(FENCE_WAITS)
        while True:
            missing = await self._prove()
            if not missing:
                break
            if await self.stop_was_forgotten():
                return False
            for node, why in missing.items():
                if node not in self.fences and not self._time_will_prove(node):
                    self.fences.add(node)
                    self.tell(f"{node} is not proven clean ({why}); asked its runbook for a fence")
                    await self._ask_for_fence(node, why)
            self.stop_if_cancelled()
            self.at("fence", waits="; ".join(f"{n}: {w}" for n, w in missing.items()), then="start")
            wait = waits.pop(0) if len(waits) > 1 else waits[0]
            try:
                await workflow.wait_condition(
                    lambda: all(n in self.receipts for n in self.inp.old.nodes),
                    timeout=timedelta(seconds=wait),
                    timeout_summary="then ask the cluster again",
                )
            except TimeoutError:
                continue
        self.stage(Stage.FENCE, start)
        grade = self.fence_receipt().grade()
        self.tell(f"fenced ({grade or 'the attempt held no node'})")
        await self.withdraw_fences("its ranks are proven gone")
        culprit = self.inp.verdict.culprit.node
        if culprit and culprit in self.inp.old.nodes:  # its runbook need not wait for its next look
            await self._tell_node(culprit, Signal.EVACUATED, "fenced")
        return True

    async def withdraw_fences(self, why: str) -> None:
        """A node that was asked for a fence and was not isolated for it yet stays in service."""
        while self.fences:
            await self._tell_node(min(self.fences), Signal.WITHDRAWN, why)
            self.fences.remove(min(self.fences))

    async def _tell_node(self, node: str, signal: Signal, text: str) -> None:
        try:
            await self.act(
                api.TELL_NODE,
                api.TellNode(cluster=self.inp.cluster, node=node, job=self.inp.job, signal=signal, text=text),
                summary=f"{signal}: tell {node} of {self.inp.job}",
            )
        except StepFailed as failed:
            self.tell(f"{node} could not be told: {failed}")

    async def _prove(self) -> dict[str, str]:
        """Collects receipts; returns the nodes still unproven, and why."""
        open_nodes = [n for n in self.inp.old.nodes if n not in self.receipts]
        if not open_nodes:
            return {}
        proof = await self.must(
            api.PROVE_STOPPED,
            api.Prove(
                cluster=self.inp.cluster,
                query=StopQuery(
                    native_id=self.native.native_id,
                    restarts=self.inp.old.restarts,
                    boots={n: self.inp.old.boots.get(n, "") for n in open_nodes},
                    ordered=self.ordered,
                    since=self.stopped_at or self.now(),
                ),
                patience=PROVE_PATIENCE,
            ),
            cluster=self.inp.cluster,
            summary="prove that the ranks are gone",
        )
        self.receipts |= {r.node: r for r in proof.receipts}
        for node, seconds in proof.settling.items():
            self.settles_by.setdefault(node, self.now() + seconds + PROVE_PATIENCE)
        self.settling = set(proof.settling)
        return {n: w for n, w in proof.unproven.items() if n not in self.receipts}

    def _time_will_prove(self, node: str) -> bool:
        """A node that answers and was only not watched for long enough is no case for a fence, unless it goes on."""
        return node in self.settling and self.now() < self.settles_by[node]

    async def _ask_for_fence(self, node: str, why: str) -> None:
        await self.must(
            api.REQUEST_HEAL,
            api.HealRequest(
                cluster=self.inp.cluster,
                node=node,
                verdict=self.inp.verdict if node == self.inp.verdict.culprit.node else None,
                job=self.inp.job,
                fence=True,
                by=workflow.info().workflow_id,
            ),
            summary=f"ask for a fence of {node}: {why}"[:200],
        )

    def fence_receipt(self) -> FenceReceipt:
        return FenceReceipt(
            cluster=self.inp.cluster,
            native_id=self.native.native_id,
            generation=self.inp.old.generation,
            nodes=tuple(self.receipts[n] for n in self.inp.old.nodes if n in self.receipts),
        )

    async def stop_was_forgotten(self) -> bool:
        """The job stands at a lower restart count than the one that the stop was acknowledged with."""
        native = await self.read_job("is it still stopped?")
        if native.phase.ended or native.restarts >= self.native.restarts:
            return False
        self.tell(f"the cluster has forgotten the stop (restart {native.restarts} again); stopped once more")
        self.native = native
        return True

    async def read_job(self, why: str) -> NativeJob:
        return await self.must(
            api.READ_JOB,
            api.OnJob(cluster=self.now_in, native_id=self.native.native_id),
            cluster=self.now_in,
            summary=why,
        )

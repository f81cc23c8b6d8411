"""What `SuperviseJob` does when something was seen: gather, judge, decide."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities import api
    from fleet.decision import Decision, DecisionInput
    from fleet.faults.evidence import Culprit, Evidence, FaultClass, Verdict
    from fleet.ladder import unusable
    from fleet.runbooks import Order
    from fleet.transfer import Moves, moves_of
    from workflows import attributes
    from workflows.attempts import Attempts
    from workflows.base import StepFailed


class Judging(Attempts):
    """From evidence to the ladder's next step."""

    async def judge(self, evidence: tuple[Evidence, ...], want: Order | None) -> Verdict:
        """Adds what the cluster knows to what was seen, and judges. A person's order needs no verdict."""
        self.at("judge", waits="evidence from the cluster")
        if want is not None:
            self.verdict = Verdict(
                fault=FaultClass.UNKNOWN,
                culprit=Culprit(job=self.inp.job),
                rule="order",
                title=f"{want.by} ordered it: {want.reason}",
                confidence=1.0,
            )
            return self.verdict
        last = self.ledger.last
        gathered = await self.must(
            api.GATHER,
            api.Gather(
                cluster=self.inp.cluster,
                native_id=self.native_id,
                job=self.inp.job,
                nodes=last.nodes if last else (),
                restarts=last.restarts if last else 0,
            ),
            cluster=self.inp.cluster,
            summary="gather evidence",
        )
        known = (*evidence, *gathered.evidence, *await self.waited_for())
        self.verdict = await self.must(
            api.JUDGE,
            api.JudgeIn(cluster=self.inp.cluster, evidence=known, job=self.inp.job),
            summary="judge",
        )
        workflow.upsert_search_attributes([attributes.FAULT.value_set(self.verdict.fault)])
        self.facts["Verdict"] = f"{self.verdict.title} ({self.verdict.fault}, rule {self.verdict.rule})"
        self.tell(f"verdict: {self.verdict.title}")
        return self.verdict

    async def waited_for(self) -> tuple[Evidence, ...]:
        """What its ranks' dumps say, where the job names a folder for them. Nobody waits for a person over it."""
        native, last = self.native, self.ledger.last
        if native is None or last is None or native.tokens.dumps is None:
            return ()
        try:
            found = await self.act(
                api.DIAGNOSE_HANG,
                api.Hang(
                    cluster=self.inp.cluster,
                    native_id=self.native_id,
                    job=self.inp.job,
                    nodes=last.nodes,
                    since=last.running_at or 0.0,
                ),
                cluster=self.inp.cluster,
                summary="compare the ranks' dumps",
            )
        except StepFailed as failed:
            self.tell(f"the ranks' dumps were not read: {failed}")
            return ()
        return found.evidence

    async def decide(self, verdict: Verdict, want: Order | None) -> Decision:
        """The ladder's next step under today's policy."""
        self.at("decide")
        native, last = self.native, self.ledger.last
        ruled_out = want.exclude if want else ()
        its_owners = native.own_excluded if native else ()
        free = await self.must(
            api.COUNT_FREE,
            api.NeedsNodes(
                cluster=self.inp.cluster,
                native_id=self.native_id,
                exclude=(*unusable(self.ledger, verdict), *ruled_out, *its_owners),
                own=last.nodes if last else (),
                wanted=native.nodes_wanted if native else 0,
            ),
            cluster=self.inp.cluster,
            summary="count free nodes",
        )
        decision = await self.must(
            api.DECIDE,
            DecisionInput(
                cluster=self.inp.cluster,
                verdict=verdict,
                ledger=self.ledger,
                at=self.now(),
                free_nodes=free.free,
                nodes_wanted=native.nodes_wanted if native else 1,
                want=want.want if want else None,
                exclude=ruled_out,
                moves=self.moves(want),
                opted_in=native is not None and native.tokens.transfer,
            ),
            summary="decide the next step",
        )
        self.facts["Decision"] = f"{decision.action}: {decision.why}"
        self.facts["Tries left"] = str(decision.budget_left)
        self.tell(f"decision: {decision.action}, {decision.why}")
        return decision

    def moves(self, want: Order | None) -> Moves:
        """What says whether it could go to another cluster; a person may have named the one."""
        known = moves_of(self.inp.home, self.native)
        return known.model_copy(update={"clusters": (want.to,)}) if want is not None and want.to else known

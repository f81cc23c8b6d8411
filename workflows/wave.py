"""What `GuardCluster` does when many nodes fail at once: one wave instead of a runbook for each at the same time.

taken in -> within the limit (beyond it one question for all) -> isolated in batches -> repairs at the budget's rate

The ledger holds each node until its own runbook has ended, so that nothing is forgotten over restarts. That runbook
takes over the mark that the wave has made: the guard hands it out with the lease.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities import api, wave_api
    from fleet.identity import node_workflow_id
    from fleet.people import Choice
    from fleet.runbooks import GuardInput, LeaseAnswer, Runbook
    from fleet.waves import DropOrder, Dropped, Stand, Wave, WaveCount, WaveOrder, folded, listed, wave_op
    from workflows.base import Abandoned, Book, StepFailed

HEALS_AT_ONCE = 20
"""Runbooks started in one step: the server starts about 15 a second."""
LOOK_AGAIN = 60.0
"""Seconds until a guard with open repairs looks by itself whether their runbooks still run; their ends are told."""
GATHER = 2.0
"""Seconds in which nodes that need a person's word are gathered into one question: a wave may come in parts."""


MARKED = (Stand.REQUESTED, Stand.HEALING)
"""Stands of a node that carries the wave's mark."""


@dataclass
class Entry:
    """One node of the ledger."""

    wave: int
    stand: Stand


class Waves(Book):
    """The ledger of a guard's waves, and the steps that work it off."""

    kind = Runbook.GUARD

    def __init__(self, inp: GuardInput) -> None:
        super().__init__()
        self.scope = inp.scope
        self.leases = inp.leases
        self.questions = inp.questions
        self.count = inp.wave_count
        self.waves_taken = inp.waves_taken
        self.waves = {wave.number: wave for wave in inp.waves}
        self.entries = {
            node: Entry(wave.number, stand)
            for wave in inp.waves
            for stand, nodes in wave.nodes.items()
            for node in nodes
        }
        self.in_hand: dict[str, None] = {}
        """Nodes that a step under way isolates or starts a runbook for."""
        self.news = bool(inp.waves)
        self.question: asyncio.Task[None] | None = None
        self.isolating: asyncio.Task[wave_api.NodesIsolated] | None = None
        self.ending = False

    # -- the ledger

    def take_in(self, order: WaveOrder) -> None:
        """Nodes that are in the ledger already stay where they are; those with a lease have a runbook at work."""
        if not self.entries:
            self.count = WaveCount()
        known = {*self.entries, *(lease.node for lease in self.leases)}
        for part in order.parts:
            new = [node for node in dict.fromkeys(part.nodes) if node not in known]
            known |= set(new)
            if not new:
                continue
            self.waves_taken += 1
            self.waves[self.waves_taken] = Wave(number=self.waves_taken, why=part.why[:200])
            self.entries |= {node: Entry(self.waves_taken, Stand.NEW) for node in new}
            self._counted(nodes=len(new))
            self.tell(f"wave {self.waves_taken}: {len(new)} nodes at once, {part.why[:100]}: {folded(new)[:200]}")
        self.news = True

    def carried(self) -> tuple[Wave, ...]:
        """The ledger for the next run."""
        kept = []
        for number, wave in self.waves.items():
            nodes = {stand: tuple(self._at(stand, number)) for stand in Stand}
            kept.append(wave.model_copy(update={"nodes": {stand: found for stand, found in nodes.items() if found}}))
        return tuple(kept)

    def _at(self, stand: Stand, wave: int | None = None) -> list[str]:
        return [n for n, e in self.entries.items() if e.stand is stand and wave in {None, e.wave}]

    def _move(self, nodes: Iterable[str], stand: Stand, *, only: Stand | None = None) -> None:
        """Nodes that somebody took out of the ledger meanwhile stay out."""
        for node in nodes:
            entry = self.entries.get(node)
            if entry is not None and only in {None, entry.stand}:
                entry.stand = stand

    def _counted(self, **more: int) -> None:
        self.count = self.count.model_copy(update={key: getattr(self.count, key) + n for key, n in more.items()})
        self.show_wave()

    def show_wave(self) -> None:
        """Puts the numbers on the page."""
        stands = [entry.stand for entry in self.entries.values()]
        self.count = self.count.model_copy(
            update={
                "held": stands.count(Stand.HELD),
                "later": stands.count(Stand.LATER),
                "healing": stands.count(Stand.HEALING),
            }
        )
        self.facts["Wave"] = self.count.text if self.count.nodes else ""
        self.show()

    def _leave(self, nodes: Iterable[str], why: str) -> None:
        """Nothing more is done about them."""
        gone = [node for node in nodes if self.entries.pop(node, None) is not None]
        if gone:
            self._counted(left=len(gone))
            self.tell(f"left alone, {why}: {folded(gone)[:300]}")
        self._tidy()

    def finish(self, node: str) -> None:
        """Its runbook has ended; how, its own page says."""
        entry = self.entries.get(node)
        if entry is not None and entry.stand is Stand.HEALING:
            del self.entries[node]
            self._counted(done=1)
            self.news = True
            self._tidy()

    def _tidy(self) -> None:
        open_waves = {entry.wave for entry in self.entries.values()}
        for number in [n for n, wave in self.waves.items() if n not in open_waves and not wave.untold]:
            del self.waves[number]
            self.tell(f"wave {number} is over")
        if not self.entries:
            self.show_wave()

    # -- what a node's runbook hears with its lease

    def hand_over(self, node: str) -> LeaseAnswer:
        """The mark that a wave has made on the node, if one has: from now on it is that runbook's."""
        entry = self.entries.get(node)
        if entry is None:
            return LeaseAnswer(granted=True)
        if entry.stand not in MARKED:
            del self.entries[node]  # its own runbook was quicker, and isolates it itself
            self._tidy()
            return LeaseAnswer(granted=True)
        entry.stand = Stand.HEALING
        self.show_wave()
        wave = self.waves[entry.wave]
        return LeaseAnswer(
            granted=True, mark=wave_op(self.scope, node, self._tag(entry.wave)), marked_at=wave.marked_at
        )

    def _tag(self, number: int) -> str:
        return f"{workflow.info().first_execution_run_id}/{number}"

    # -- the work

    async def serve(self) -> None:
        """Works the ledger off, one step after another, until the history is long."""
        ticked = False
        while not workflow.info().is_continue_as_new_suggested():
            self.news = False
            if self.entries or self.waves:
                await self._work(ticked)
            ticked = not self.news and await self._wait()
        await self.end_question()

    async def _work(self, ticked: bool) -> None:
        try:
            await self._admit()
            await self._isolate()
            if self._at(Stand.NEW):  # more came meanwhile: what is sick is isolated before anything is repaired
                self.news = True
                return
            await self._heal(ticked)
            await self._tell_nodes()
        except (StepFailed, Abandoned) as failed:
            self.tell(f"the waves wait a while: {failed}")
            await workflow.sleep(LOOK_AGAIN, summary="before the waves go on")
            self.news = True

    async def _wait(self) -> bool:
        """Until there is something new; True when it only was time to look."""
        limit = timedelta(seconds=LOOK_AGAIN) if self.entries else None
        try:
            await workflow.wait_condition(
                lambda: self.news or workflow.info().is_continue_as_new_suggested(),
                timeout=limit,
                timeout_summary="then look whether the repairs still run",
            )
        except TimeoutError:
            return True
        return False

    async def _admit(self) -> None:
        """As many as the limit leaves room for; the rest is asked about, once."""
        waiting = [*self._at(Stand.LATER), *self._at(Stand.NEW)]
        if waiting:
            mode = (await self.policy(self.scope)).mode("isolate")
            blast = await self._blast()
            room = max(0, blast.limit - blast.isolated)
            if mode == "observe":
                self._leave(waiting, "the mode of 'isolate' is observe")
            elif mode == "auto":
                self._move(waiting[:room], Stand.NEXT)
            else:
                self._move(self._at(Stand.LATER)[:room], Stand.NEXT)
            self._move(self._at(Stand.NEW), Stand.HELD)
            self.show_wave()
        if self._at(Stand.HELD) and (self.question is None or self.question.done()):
            self.question = asyncio.create_task(self._ask_about_held())

    async def _blast(self) -> wave_api.Blast:
        out = tuple(lease.node for lease in self.leases)
        return await self.must(
            wave_api.READ_BLAST,
            wave_api.BlastIn(cluster=self.scope, out=out),
            cluster=self.scope,
            summary="how many nodes are out",
        )

    async def _ask_about_held(self) -> None:
        try:
            await self._ask_once()
        except (StepFailed, Abandoned) as failed:
            self.tell(f"nobody could be asked: {failed}")

    async def _ask_once(self) -> None:
        """One question with the whole list, however many they are."""
        await workflow.sleep(GATHER, summary="for the rest of the wave")
        blast = await self._blast()
        nodes = self._at(Stand.HELD)
        if not nodes:
            return
        whys = "; ".join(dict.fromkeys(self.waves[self.entries[n].wave].why for n in nodes))
        outcome = await self.ask(
            title=f"Isolate {len(nodes)} more nodes of {self.scope}",
            why=(
                f"{len(nodes)} nodes report faults at once: {whys[:600]}. {blast.isolated} of {blast.nodes} nodes "
                f"are isolated or out already; without asking, {blast.limit} may be. Nothing was done about these."
            ),
            steps=(
                *listed(nodes),
                "approve: isolate all of them now, also beyond the limit; running work is not touched",
                "retry: isolate them one after another, as the limit leaves room",
                "abort: leave them as they are; nothing is repaired",
            ),
            options=(Choice.APPROVE, Choice.RETRY, Choice.ABORT),
            default=Choice.RETRY,
            wide=True,
            cluster=self.scope,
        )
        if self.ending:
            return
        match outcome.choice:
            case Choice.APPROVE:
                self._move(nodes, Stand.NEXT, only=Stand.HELD)
            case Choice.RETRY:
                self._move(nodes, Stand.LATER, only=Stand.HELD)
            case _:
                self._leave([n for n in nodes if n in self._at(Stand.HELD)], f"{outcome.by} said so")
        self.news = True

    async def end_question(self) -> None:
        """Its nodes stay held, and the next run asks anew."""
        self.ending = True
        if self.question is not None and not self.question.done():
            self.question.cancel()
            await asyncio.gather(self.question, return_exceptions=True)

    async def _isolate(self) -> None:
        """In batches. One that is refused or given up leaves its nodes as they are and says so."""
        while nodes := self._at(Stand.NEXT):
            number = self.entries[nodes[0]].wave
            batch = [n for n in nodes if self.entries[n].wave == number][: wave_api.BATCH]
            self.in_hand = dict.fromkeys(batch)
            self.isolating = asyncio.create_task(self._isolate_batch(number, tuple(batch)))
            try:
                done = await self.isolating
            except (StepFailed, Abandoned) as failed:
                self._leave(batch, f"not isolated, as far as known: {failed}")
            except BaseException as error:
                if not is_cancelled_exception(error) or workflow.cancellation_reason() is not None:
                    raise
                self._forget(batch)  # by `take_out`; some may carry the mark already
            else:
                self._isolated(number, done)
            finally:
                self.in_hand, self.isolating = {}, None

    async def _isolate_batch(self, number: int, nodes: tuple[str, ...]) -> wave_api.NodesIsolated:
        return await self.must(
            wave_api.ISOLATE_NODES,
            wave_api.IsolateNodes(
                cluster=self.scope, tag=self._tag(number), nodes=nodes, text=self.waves[number].why[:120]
            ),
            cluster=self.scope,
            summary=f"isolate {len(nodes)} nodes: {folded(nodes)}",
        )

    def _isolated(self, number: int, done: wave_api.NodesIsolated) -> None:
        """The mark is on the node and the repair in the ledger: that is the request."""
        wave = self.waves[number]
        self.waves[number] = wave.model_copy(update={"marked_at": self.now(), "untold": (*wave.untold, *done.marked)})
        self._move(done.marked, Stand.REQUESTED)
        self._counted(isolated=len(done.marked), requested=len(done.marked))
        self.tell(f"wave {number}: {len(done.marked)} nodes isolated, their repairs requested")
        reasons: dict[str, list[str]] = {}
        for node, why in done.left.items():
            reasons.setdefault(why.replace(node, "the node"), []).append(node)
        for why, nodes in reasons.items():
            self._leave(nodes, why)

    async def _heal(self, ticked: bool) -> None:
        """Starts the next repairs, in order, as far as the budget leaves room."""
        if ticked and (self.leases or self._at(Stand.HEALING)):
            await self.look_after()
        leased = {lease.node for lease in self.leases}
        waiting = [node for node in self._at(Stand.REQUESTED) if node not in leased]
        if not waiting:
            return
        blast = await self._blast()
        busy = leased | set(self._at(Stand.HEALING))
        chosen = tuple(waiting[: max(0, min(blast.nodes_out - len(busy), HEALS_AT_ONCE))])
        if not chosen:
            return
        self.in_hand = dict.fromkeys(chosen)
        try:
            await self.must(
                wave_api.REQUEST_HEALS,
                wave_api.HealNodes(cluster=self.scope, nodes=chosen, by=workflow.info().workflow_id),
                summary=f"start the repair of {folded(chosen)}",
            )
            self._move(chosen, Stand.HEALING)
            self.news = self.news or len(chosen) == HEALS_AT_ONCE
        except (StepFailed, Abandoned) as failed:
            self._leave(chosen, f"isolated, and no repair was started: {failed}")
        finally:
            self.in_hand = {}
        self.show_wave()

    async def look_after(self) -> None:
        """Frees what runbooks hold that have ended without a word: terminated, or before they got their lease."""
        holders = {lease.holder: lease.node for lease in self.leases}
        holders |= {node_workflow_id(self.scope, node): node for node in self._at(Stand.HEALING)}
        alive = await self.act(api.FIND_ALIVE, api.Alive(ids=tuple(holders)), summary="which repairs still run")
        ended = {holder: node for holder, node in holders.items() if holder not in alive.ids}
        if freed := [lease for lease in self.leases if lease.holder in ended]:
            self.tell("freed " + ", ".join(f"{lease.node} ({lease.holder} has ended)" for lease in freed))
        self.leases = tuple(lease for lease in self.leases if lease.holder not in ended)
        for node in ended.values():
            self.finish(node)

    async def _tell_nodes(self) -> None:
        """What a person reads on the node, after all that matters more; it stops nothing."""
        for number, wave in list(self.waves.items()):
            while not self.news and number in self.waves and (untold := self.waves[number].untold):
                batch = untold[: wave_api.BATCH]
                try:
                    await self.act(
                        wave_api.TELL_NODES,
                        wave_api.IsolateNodes(
                            cluster=self.scope, tag=self._tag(number), nodes=batch, text=wave.why[:120]
                        ),
                        cluster=self.scope,
                        summary=f"tell why, on {len(batch)} nodes",
                    )
                except StepFailed as failed:
                    self.tell(f"not told on the nodes themselves: {failed}")
                if now := self.waves.get(number):  # all of it may have been taken out meanwhile
                    left = tuple(node for node in now.untold if node not in batch)
                    self.waves[number] = now.model_copy(update={"untold": left})
        self._tidy()

    # -- ends

    async def take_out(self, order: DropOrder) -> Dropped:
        """A person's word. What is being isolated just now is ended (all) or waited for (some), then it counts."""
        gone = [node for node in (order.nodes or tuple(self.entries)) if node in self.entries]
        if not gone:
            return Dropped(nodes=0, isolated=0)
        marked = self._forget(node for node in gone if node not in self.in_hand)
        if not order.nodes and self.isolating is not None:
            self.isolating.cancel()
        await workflow.wait_condition(lambda: not any(node in self.in_hand for node in gone))
        marked += self._forget(gone)
        self._counted(left=len(gone))
        self.tell(f"{order.by} took {len(gone)} nodes out of the waves: {order.reason}")
        self._tidy()
        self.news = True
        return Dropped(nodes=len(gone), isolated=marked)

    def _forget(self, nodes: Iterable[str]) -> int:
        """How many of them carry our mark."""
        gone = {node: entry for node in nodes if (entry := self.entries.pop(node, None)) is not None}
        for number, wave in self.waves.items():
            left = tuple(node for node in wave.untold if node not in gone)
            self.waves[number] = wave.model_copy(update={"untold": left})
        return sum(entry.stand in MARKED for entry in gone.values())

    def leave(self) -> None:
        """Last words after a cancel; nothing follows it."""
        marked = sum(entry.stand in MARKED for entry in self.entries.values())
        rest = len(self.entries) - marked
        self.tell(
            f"cancelled; {marked} nodes of its waves carry our mark and {rest} do not; nothing more is isolated "
            f"or repaired. `runbook release {self.scope}/NODE` or `runbook release --all` gives marks back"
        )

"""`burst`: 1,000 nodes of one Kubernetes cluster fail at once; how long until all are isolated and all repairs
requested, beside a plain asyncio script and `kubectl cordon` on the same nodes in the same run.

A real apiserver and kwok nodes. Ours is the whole way: kernel log lines through the embedded Temporal server and the
product's worker, judged one by one, within limits. The script is given the list of nodes.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from bench.burst_sides import Plain, PlainScript, Watched, watched
from bench.k8s_lab import lab
from bench.machine import cpu_seconds
from bench.stand import REPOSITORY, Stand, say, stand, until
from bench.table import Figure
from clients.nodes import send_evidence
from fleet.errors import FleetError
from fleet.identity import guard_workflow_id, node_workflow_id, watch_workflow_id
from fleet.model import Value
from fleet.policy import Policy
from fleet.policy_file import parse_policy
from fleet.runbooks import Signal
from fleet.waves import WaveCount
from workers.fleets import ALL_AUTO
from workers.lab_k8s import MOST_FAKE_NODES, K8sLab
from workers.lab_traces import processes

SUMMARY = "1,000 faulty nodes at once: isolated and repairs requested, beside a script and kubectl cordon"
CLUSTER = "gamma"
ISOLATED_GOAL, REQUESTED_GOAL = 10.0, 40.0
"""Seconds from the log being handed in until the last node is seen cordoned, and the last repair requested."""
PATIENCE = 120.0
QUIET = 5.0
"""Seconds between two sides, in which controllers and watches come to rest."""


class Ours(Value):
    """One burst, by the wall clock; times in seconds from its start."""

    handed_in: float
    """Evidence parsed and given to the watch."""
    judged: float
    """The first wave at the guard."""
    first_isolated: float
    isolated: float
    requested: float
    healed: float
    """From the first start of a repair until `heals` nodes are back; 0 where none was waited for."""
    events: int
    size: int
    """Of the guard's history when all was requested; bytes."""
    worker_cpu: float
    server_cpu: float
    apiserver_cpu: float
    """Processor seconds until all was requested."""


class Kubectl(Value):
    """`kubectl cordon` of a sample."""

    nodes: int
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes; smaller ones are for trying it out."""
    parser.add_argument("--nodes", type=int, default=1000, help="faulty nodes; the goals are for 1,000")
    parser.add_argument(
        "--sample", type=int, default=100, help="nodes that kubectl cordons: it does five calls a second"
    )
    parser.add_argument("--nodes-out", type=int, default=4, help="repairs at a time")
    parser.add_argument("--heals", type=int, default=12, help="repairs that are waited for after the burst")


def run(options: argparse.Namespace) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Raises FleetError where the lab cannot run, or when a side does not come to its end."""
    count = min(max(10, options.nodes), MOST_FAKE_NODES)
    say(f"a control plane and {count} kwok nodes")
    with lab(CLUSTER, nodes=0, fake_nodes=count) as place:
        plain, cordon, ours = asyncio.run(_measure(place, count, options))
    return figures(count, ours, plain, cordon, options.heals), notes(count, cordon, options)


async def _measure(place: K8sLab, count: int, options: argparse.Namespace) -> tuple[Plain, Kubectl, Ours]:
    kubeconfig = place.kubeconfig(CLUSTER)
    nodes = [f"{CLUSTER}-f{number}" for number in range(1, count + 1)]
    async with watched(kubeconfig) as eyes:
        await asyncio.sleep(QUIET)
        say("a plain asyncio script")
        script = PlainScript(kubeconfig, place.root / "requests.jsonl")
        plain = await script.run(nodes, eyes)
        await script.back(nodes)
        await eyes.all_in(60)
        sample = nodes[: max(1, min(options.sample, count))]
        say(f"kubectl cordon of {len(sample)} nodes")
        cordon = Kubectl(nodes=len(sample), seconds=await kubectl(place, "cordon", *sample))
        await eyes.all_out(len(sample), 60)
        await script.back(sample)
        await eyes.all_in(60)
        await asyncio.sleep(QUIET)
        async with stand() as here:
            fleet = write_fleet(here.folder, kubeconfig, count, options.nodes_out)
            async with here.worker(fleet, CLUSTER) as worker:
                await asyncio.sleep(QUIET)
                say("ours")
                apiserver = pid_of("kube-apiserver", f"--cert-dir={place.root}/{CLUSTER}/pki")
                pids = (worker, here.server_pid, apiserver)
                policy = parse_policy(await asyncio.to_thread(fleet.read_text), str(fleet))
                return plain, cordon, await _ours(here, eyes, nodes, policy, pids, options.heals)


async def kubectl(place: K8sLab, *words: str) -> float:
    """Seconds of one kubectl as the cluster's admin. Raises PermanentError with its words."""
    start = time.perf_counter()
    await asyncio.to_thread(place.call, "shell", "kubectl", "--kubeconfig", str(place.kubeconfig(CLUSTER)), *words)
    return time.perf_counter() - start


def write_fleet(folder: Path, kubeconfig: Path, count: int, nodes_out: int) -> Path:
    """Every step automatic, blast limits as wide as the burst."""
    off = folder / "power"
    off.mkdir()
    hook = [sys.executable, str(REPOSITORY / "bench" / "fake_power.py")]
    rows = ["version: 1", "clusters:", f"  {CLUSTER}:", "    kind: kubernetes", f"    kubeconfig: {kubeconfig}"]
    rows += ["    power:"]
    for verb in ("off", "on", "status"):
        words = [*hook, verb, str(kubeconfig), str(off), "{node}"]
        rows.append(f"      '{verb}': [{', '.join(map(repr, words))}]")
    rows += ["limits:", f"  nodes_isolated: {count}", '  nodes_isolated_percent: "100%"']
    rows += [f"  nodes_out: {nodes_out}", '  nodes_out_percent: "100%"']
    fleet = folder / "fleet.yaml"
    fleet.write_text("\n".join(rows) + "\n" + ALL_AUTO)
    return fleet


def pid_of(program: str, word: str) -> int:
    """Of the process with that word in its command line."""
    return next(pid for pid, words in processes() if words[0].endswith(program) and word in words)


async def _ours(
    here: Stand, eyes: Watched, nodes: Sequence[str], policy: Policy, pids: Sequence[int], heals: int
) -> Ours:
    """`pids`: worker, Temporal server and apiserver, whose processor time is read."""
    before = [cpu_seconds(pid) for pid in pids]
    log = kernel_log(nodes)
    start = time.time()
    await send_evidence(here.client, CLUSTER, log, policy)
    handed_in = time.time() - start
    try:
        isolated = await eyes.all_out(len(nodes), PATIENCE) - start
    except FleetError:
        await _say_what_happened(here, eyes)
        raise
    first = min(eyes.cordoned.values()) - start
    count = await _requested(here, len(nodes))
    requested = time.time() - start
    spent = [cpu_seconds(pid) - used for pid, used in zip(pids, before, strict=True)]
    handle = here.client.get_workflow_handle(guard_workflow_id(CLUSTER))
    seen = await handle.describe()
    began = [_at(e) for e in (await handle.fetch_history()).events if _is_wave(e)]
    say(f"isolated {isolated:.1f} s, requested {requested:.1f} s: {count.text}")
    return Ours(
        handed_in=handed_in,
        judged=min(began) - start,
        first_isolated=first,
        isolated=isolated,
        requested=requested,
        healed=await _healed(here, heals),
        events=seen.history_length,
        size=seen.raw_description.workflow_execution_info.history_size_bytes,
        worker_cpu=spent[0],
        server_cpu=spent[1],
        apiserver_cpu=spent[2],
    )


async def _say_what_happened(here: Stand, eyes: Watched) -> None:
    say(f"{len(eyes.cordoned)} nodes are cordoned")
    for workflow_id in (watch_workflow_id(CLUSTER), guard_workflow_id(CLUSTER)):
        view = await here.view(workflow_id)
        say("\n".join((workflow_id, *(view.story if view else ()))))


def kernel_log(nodes: Sequence[str]) -> bytes:
    """What a central syslog would hold: XID 79 of one GPU of each node, of just now."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    what = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return "".join(f"{now} {node} kernel: NVRM: Xid (PCI:0000:ab:00): {what}\n" for node in nodes).encode()


async def _requested(here: Stand, wanted: int) -> WaveCount:
    """The guard's own ledger; each of its entries has its mark on the node."""
    found = WaveCount()

    async def all_there() -> bool:
        nonlocal found
        view = await here.view(guard_workflow_id(CLUSTER))
        found = view.wave if view and view.wave else found
        return found.requested + found.left >= wanted

    await until(all_there, PATIENCE, f"{wanted} repairs to be requested", every=0.1)
    return found


async def _healed(here: Stand, wanted: int) -> float:
    """Seconds until so many nodes are back at work, each proven by a new boot."""
    if wanted < 1:
        return 0.0
    start = time.time()

    async def enough() -> bool:
        view = await here.view(guard_workflow_id(CLUSTER))
        return view is not None and view.wave is not None and view.wave.done >= wanted

    await until(enough, PATIENCE, f"{wanted} repairs", every=0.5)
    took = time.time() - start
    first = await here.view(node_workflow_id(CLUSTER, f"{CLUSTER}-f1"))
    say(f"{wanted} repairs in {took:.0f} s; the first one: {first.result if first else 'gone'}")
    return took


def _is_wave(event: HistoryEvent) -> bool:
    return (
        event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        and event.workflow_execution_signaled_event_attributes.signal_name == Signal.WAVE
    )


def _at(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9


# -- the figures


def figures(count: int, ours: Ours, plain: Plain, cordon: Kubectl, heals: int) -> tuple[Figure, ...]:
    """The goals are for 1,000 nodes, and held against fewer too."""
    script, slow = "a plain asyncio script", f"kubectl cordon of {cordon.nodes} nodes, for each"
    rows = [
        Figure(
            name=f"all {count} isolated",
            value=ours.isolated,
            unit="s",
            other=script,
            other_value=plain.isolated,
            at_most=ISOLATED_GOAL,
        ),
        Figure(
            name=f"all {count} repairs requested",
            value=ours.requested,
            unit="s",
            other=script,
            other_value=plain.requested,
            at_most=REQUESTED_GOAL,
        ),
        Figure(
            name="isolation of one node",
            value=ours.isolated / count * 1000,
            unit="ms",
            other=slow,
            other_value=cordon.seconds / cordon.nodes * 1000,
        ),
        Figure(name=f"kubectl cordon of {cordon.nodes} nodes", value=cordon.seconds, unit="s"),
    ]
    parts = {
        "until the log is parsed and handed in": ours.handed_in,
        "until the guard has the first wave, judged": ours.judged,
        "until the first node is seen isolated": ours.first_isolated,
        "until the last one is": ours.isolated,
    }
    rows += [Figure(name=name, value=value, unit="s") for name, value in parts.items()]
    used = {"worker": ours.worker_cpu, "Temporal server": ours.server_cpu, "apiserver": ours.apiserver_cpu}
    rows += [Figure(name=f"processor time, {name}", value=value, unit="s") for name, value in used.items()]
    rows += [
        Figure(name="history of the guard, events", value=ours.events, unit="events"),
        Figure(name="history of the guard, size", value=ours.size / 1024, unit="KiB"),
    ]
    if ours.healed:
        rows.append(Figure(name="repairs ended after that", value=heals / ours.healed * 60, unit="per min"))
    return tuple(rows)


def notes(count: int, cordon: Kubectl, options: argparse.Namespace) -> tuple[str, ...]:
    """How to read the figures."""
    return (
        f"Real etcd, kube-apiserver and controllers, {count} kwok nodes. Isolated: seen by the bench's own watch on "
        "the apiserver, the same for every way. Requested: in the guard's ledger (ours), a line in a file (script).",
        "Ours begins with kernel log lines; each node is judged. The script is given the nodes, has no limit and "
        "no memory, and starts no repair. The processes of all ways share the cores with the apiserver.",
        f"kubectl cordon was measured on {cordon.nodes} nodes, not on all: its client keeps to 5 calls a second, and "
        "cordons only.",
        f"Repairs run {options.nodes_out} at a time on nodes without a machine (their power hook is a file): their "
        "rate is what the runbooks cost, not what a boot takes.",
    )

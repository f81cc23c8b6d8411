"""The whole agent in one process: from lines of the kernel and from faults of a driver to what is handed over."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent import Agent, Settings
from agents.kmsg import KernelTail
from agents.spool import Spool
from fleet.errors import PermanentError, TemporaryError
from fleet.faults.evidence import EARLIER_BOOT, Evidence, Kind, Source
from tests.agents.driver import LOST, Driver, pci, uuid

LIMIT = 30.0


class Watch:
    """Takes evidence as the cluster's watch does: each key once."""

    def __init__(self) -> None:
        self.told: list[Evidence] = []
        self.calls = 0
        self.error: Exception | None = None
        self._news = asyncio.Event()

    async def send(self, pieces: Sequence[Evidence]) -> None:
        self.calls += 1
        self._news.set()
        if self.error is not None:
            raise self.error
        self.told += pieces

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not done():
                self._news.clear()
                await self._news.wait()

    async def codes(self, count: int) -> list[str | None]:
        await self.until(lambda: len(self.told) >= count)
        return [piece.code for piece in self.told]


class Kernel:
    """A kernel that writes its log into a named pipe, by this machine's clock."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe
        self.sequence = 100
        self.lines: list[bytes] = []
        os.mkfifo(pipe)

    def record(self, message: str, *, ago: float = 0.0, skip: int = 0) -> bytes:
        self.sequence += 1 + skip
        stamp = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago) * 1e6)
        line = f"4,{self.sequence},{stamp},-;{message}\n".encode()
        self.lines.append(line)
        return line

    def say(self, *records: bytes) -> None:
        with self.pipe.open("wb") as out:
            out.write(b"".join(records))


def xid(index: int, code: int, text: str = "pid=1, name=python3") -> str:
    return f"NVRM: Xid (PCI:{pci(index)}): {code}, {text}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own waits are no part of what is tested."""
    for name in ("GATHER", "FILE_EVERY", "FIRST_WAIT"):
        monkeypatch.setattr(f"agents.agent.{name}", 0.05)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "kmsg")


@pytest.fixture
def settings(tmp_path: Path, kernel: Kernel) -> Settings:
    (tmp_path / "boot_id").write_text("boot-1\n")
    return Settings(
        cluster="alpha",
        node="a1",
        state=tmp_path / "state",
        kmsg=kernel.pipe,
        every=0.1,
        hang_after=LIMIT,
        boot_id=tmp_path / "boot_id",
    )


@pytest.fixture
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without GPUs, whatever this machine has."""
    (tmp_path / "libnvidia-ml.so.1").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@asynccontextmanager
async def running(settings: Settings, watch: Watch) -> AsyncIterator[Agent]:
    agent = Agent(settings, watch.send)
    task = asyncio.create_task(agent.run())
    try:
        await watch.until(lambda: watch.calls > 0 or task.done())
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def spool_of(settings: Settings) -> Iterator[Spool]:
    spool = Spool(settings.state, settings.boot_id.read_text().strip())
    yield spool
    spool.close()


async def test_a_line_of_the_kernel_is_handed_over_with_its_identity(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    watch = Watch()
    async with running(settings, watch):
        kernel.say(
            kernel.record(f"NVRM: GPU at PCI:{pci(1)}: {uuid(1)}"),
            kernel.record(xid(1, 79, "GPU has fallen off the bus.")),
        )
        await watch.codes(1)

    (piece,) = watch.told
    assert (piece.source, piece.kind, piece.code) == (Source.KERNEL, Kind.XID, "79")
    assert (piece.cluster, piece.node, piece.gpu, piece.pci) == ("alpha", "a1", uuid(1), pci(1))
    assert piece.boot is None, "the watch stamps the boot by the name that the cluster has for it"


async def test_the_same_line_by_hand_is_the_same_evidence(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    """`dmesg` handed in by a person must not count as a second fault."""
    from fleet.faults.parse import parse_any

    watch = Watch()
    async with running(settings, watch):
        kernel.say(kernel.record(xid(1, 79, "GPU has fallen off the bus.")))
        await watch.codes(1)

    _, _, rest = kernel.lines[0].decode().partition(",")
    stamp = int(rest.split(",")[1]) / 1e6
    dmesg = f"[{stamp:12.6f}] {kernel.lines[0].decode().partition(';')[2]}"
    by_hand = parse_any(dmesg, cluster="alpha", node="a1", seen_at=time.time()).evidence
    assert [piece.key for piece in by_hand] == [piece.key for piece in watch.told]


async def test_a_restart_tells_nothing_again_and_misses_nothing(
    settings: Settings, kernel: Kernel, no_driver: None, tmp_path: Path
) -> None:
    settings = replace(settings, kmsg=tmp_path / "kmsg.file")
    log = settings.kmsg
    log.write_bytes(kernel.record(xid(1, 79)))
    first, second = Watch(), Watch()
    async with running(settings, first):
        await first.codes(1)
    with log.open("ab") as out:
        out.write(kernel.record(xid(2, 48)))
    async with running(settings, second):
        assert await second.codes(1) == ["48"]
        with log.open("ab") as out:
            out.write(kernel.record(xid(3, 95)))
        assert await second.codes(2) == ["48", "95"]


async def test_another_boot_reads_its_log_from_the_start(
    settings: Settings, kernel: Kernel, no_driver: None, tmp_path: Path
) -> None:
    settings = replace(settings, kmsg=tmp_path / "kmsg.file")
    settings.kmsg.write_bytes(kernel.record(xid(1, 79)))
    first, second = Watch(), Watch()
    async with running(settings, first):
        await first.codes(1)
    settings.boot_id.write_text("boot-2\n")
    kernel.sequence = 0
    settings.kmsg.write_bytes(kernel.record(xid(1, 48)))

    async with running(settings, second):
        assert await second.codes(1) == ["48"]


async def test_the_first_start_on_a_node_leaves_old_lines_alone(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    watch = Watch()
    async with running(settings, watch):
        kernel.say(kernel.record(xid(1, 79), ago=3600), kernel.record(xid(2, 48), ago=10))
        assert await watch.codes(1) == ["48"]


async def test_a_flood_of_one_line_is_told_once(settings: Settings, kernel: Kernel, no_driver: None) -> None:
    watch = Watch()
    async with running(settings, watch):
        for second in range(120, 20, -10):
            kernel.say(kernel.record(xid(1, 69), ago=second))
        kernel.say(kernel.record(xid(2, 79)))
        codes = await watch.codes(2)

    assert sorted(filter(None, codes)) == ["69", "79"]


async def test_a_line_that_alone_is_no_fault_of_the_node_is_not_sent(
    settings: Settings, kernel: Kernel, no_driver: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A silent file server would restart jobs that never noticed; a dead disk is the node's."""
    caplog.set_level("INFO")
    watch = Watch()
    async with running(settings, watch):
        kernel.say(
            kernel.record("nfs: server store1 not responding, still trying"),
            kernel.record("nvme nvme0: controller is down; will reset: CSTS=0xffffffff"),
        )
        assert await watch.codes(1) == ["nvme_dead"]

    assert "not sent" in caplog.text
    assert "store1" in caplog.text


async def test_lost_records_are_counted_and_are_no_evidence(
    settings: Settings, kernel: Kernel, no_driver: None, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    async with running(settings, watch):
        kernel.say(kernel.record("eth0: up"), kernel.record(xid(1, 79), skip=300))
        await watch.codes(1)

    assert [piece.code for piece in watch.told] == ["79"]
    assert "300 records of the kernel's log were overwritten" in caplog.text


async def test_evidence_waits_while_temporal_is_away_and_is_handed_over_once(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    watch = Watch()
    watch.error = TemporaryError("no Temporal server answers", delay=0.05)
    async with running(settings, watch) as agent:
        kernel.say(kernel.record(xid(1, 79)))
        await watch.until(lambda: agent.spool.waiting == 1)
        watch.error = None
        assert await watch.codes(1) == ["79"]
        await watch.until(lambda: agent.spool.waiting == 0)


async def test_evidence_that_waited_over_a_reboot_says_that_it_is_void(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    away, back = Watch(), Watch()
    away.error = TemporaryError("no Temporal server answers", delay=0.05)
    async with running(settings, away) as agent:
        kernel.say(kernel.record(xid(1, 79)))
        await away.until(lambda: agent.spool.waiting == 1)
    settings.boot_id.write_text("boot-2\n")

    async with running(settings, back):
        await back.codes(1)

    assert back.told[0].boot == EARLIER_BOOT


async def test_refused_evidence_does_not_block_what_comes_after(
    settings: Settings, kernel: Kernel, no_driver: None
) -> None:
    watch = Watch()
    async with running(settings, watch) as agent:
        watch.error = PermanentError("too large")
        kernel.say(kernel.record(xid(1, 79)))
        calls = watch.calls
        await watch.until(lambda: watch.calls > calls)
        watch.error = None
        kernel.say(kernel.record(xid(2, 48)))
        assert await watch.codes(1) == ["48"]
        assert agent.spool.waiting == 0


async def test_a_bad_field_of_a_gpu_is_handed_over_once_over_restarts(settings: Settings, driver: Driver) -> None:
    first, second = Watch(), Watch()
    driver.gpu(2, recovery_action=4)
    async with running(settings, first):
        assert await first.codes(1) == ["recovery_action"]
    assert (first.told[0].gpu, first.told[0].value) == (uuid(2), 4)

    async with running(settings, second):
        driver.gpu(3, ecc_dbe=1)
        assert await second.codes(1) == ["ecc_uncorrectable"]


async def test_a_gpu_that_vanishes_is_handed_over(settings: Settings, driver: Driver) -> None:
    watch = Watch()
    async with running(settings, watch) as agent:
        await until(lambda: len(agent.gpus.known) == 8)
        driver.gpu(6, error=LOST)
        assert await watch.codes(1) == ["nvml_lost"]

    assert (watch.told[0].kind, watch.told[0].gpu) == (Kind.GPU_LOST, uuid(6))


async def test_nvmls_xid_stands_in_where_the_kernels_log_is_silent(
    settings: Settings, kernel: Kernel, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.agent.XID_HOLD", 1.5)
    watch = Watch()
    async with running(settings, watch) as agent:
        await until(lambda: len(agent.gpus.known) == 8)
        kernel.say(kernel.record(xid(1, 79, "GPU has fallen off the bus.")))
        driver.xid(1, 79)
        driver.xid(4, 95)
        await watch.codes(2)

    assert [(piece.code, piece.source, piece.gpu) for piece in watch.told] == [
        ("79", Source.KERNEL, uuid(1)),
        ("95", Source.NODE_AGENT, uuid(4)),
    ]


async def test_a_call_that_hangs_is_ended_told_and_got_over(settings: Settings, driver: Driver) -> None:
    settings = replace(settings, hang_after=2.0)
    watch = Watch()
    async with running(settings, watch) as agent:
        await until(lambda: len(agent.gpus.known) == 8)
        driver.hang("nvmlDeviceGetFieldValues")
        assert await watch.codes(1) == ["driver_hung"]
        driver.hang("nvmlDeviceGetFieldValues", on=False)
        driver.gpu(0, ecc_dbe=1)
        assert await watch.codes(2) == ["driver_hung", "ecc_uncorrectable"]

    assert "2 times in a row" in watch.told[0].detail


async def test_a_call_that_cannot_be_ended_is_told_at_once_and_no_second_one_is_begun_beside_it(
    settings: Settings, driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the kernel kept the process: nobody waits for its end, and it is looked for again and again."""
    settings = replace(settings, hang_after=2.0)
    watch = Watch()
    async with running(settings, watch) as agent:
        await until(lambda: len(agent.gpus.known) == 8)
        monkeypatch.setattr("agents.nvml_watch.END_LIMIT", 0)
        monkeypatch.setattr("agents.nvml_watch.LONGEST_WAIT", 0.2)
        driver.hang("nvmlDeviceGetFieldValues")
        assert await watch.codes(1) == ["driver_hung"]
        driver.hang("nvmlDeviceGetFieldValues", on=False)
        driver.gpu(0, ecc_dbe=1)
        assert await watch.codes(2) == ["driver_hung", "ecc_uncorrectable"]
        monkeypatch.setattr("agents.nvml_watch.END_LIMIT", 5.0)

    assert "cannot be ended; none is started" in caplog.text


async def test_an_xid_that_is_held_back_at_the_end_is_kept(settings: Settings, driver: Driver) -> None:
    watch = Watch()
    async with running(settings, watch) as agent:
        await until(lambda: len(agent.gpus.known) == 8)
        driver.xid(1, 79)
        await until(lambda: bool(agent._held))

    with spool_of(settings) as spool:
        assert [piece.code for _, piece in spool.oldest(9)] == ["79"]


async def test_a_log_that_cannot_be_opened_leaves_the_gpus_watched(
    settings: Settings, driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(settings, kmsg=tmp_path / "none")
    watch = Watch()
    driver.gpu(0, ecc_dbe=1)
    async with running(settings, watch):
        assert await watch.codes(1) == ["ecc_uncorrectable"]

    assert "CAP_SYSLOG" in caplog.text


async def test_a_log_that_breaks_off_ends_the_agent_so_that_it_is_started_again(
    settings: Settings, kernel: Kernel, no_driver: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tail: KernelTail) -> None:
        raise OSError(5, "Input/output error")

    agent = Agent(settings, Watch().send)
    monkeypatch.setattr(KernelTail, "read", broken)
    with pytest.raises(ExceptionGroup) as raised:
        await agent.run()

    assert "cannot be read any more" in str(raised.value.exceptions[0])


async def test_the_end_of_the_agent_keeps_what_was_seen(settings: Settings, kernel: Kernel, no_driver: None) -> None:
    watch = Watch()
    watch.error = TemporaryError("away", delay=0.05)
    async with running(settings, watch) as agent:
        kernel.say(kernel.record(xid(1, 79)))
        await until(lambda: bool(agent.kernel._pending) or agent.spool.waiting > 0)

    with spool_of(settings) as spool:
        assert [piece.code for _, piece in spool.oldest(9)] == ["79"]


async def until(done: Callable[[], bool]) -> None:
    """For what the agent tells nobody."""
    async with asyncio.timeout(LIMIT):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

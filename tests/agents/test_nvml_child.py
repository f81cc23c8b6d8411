"""The child that asks NVML, through the real pynvml: against the stand-in, and against a real driver where one is."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agents.nvml_child import FIELDS
from agents.nvml_words import GpuRead, Message, Off, Start, Swept, XidEvent, read_message
from fleet.faults.tables import load_tables
from tests.agents.driver import LOST, MISMATCH, NOT_LOADED, RESET_REQUIRED, Driver, uuid
from tests.require import missing


class Child:
    """Reads its messages one by one."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def next(self) -> Message | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return read_message(line) if line else None

    def until(self, kind: type[Any]) -> list[Message]:
        """Messages up to the first of that kind."""
        found: list[Message] = []
        while not found or not isinstance(found[-1], kind):
            message = self.next()
            assert message is not None, f"it ended: {found}"
            found.append(message)
        return found

    def round(self) -> list[GpuRead]:
        return [message for message in self.until(Swept) if isinstance(message, GpuRead)]


@contextmanager
def child(every: float = 0.1, **environment: str) -> Iterator[Child]:
    process = subprocess.Popen(
        [sys.executable, "-m", "agents.nvml_child", "--every", str(every)],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()


def test_eight_sound_gpus_have_no_bad_field(driver: Driver) -> None:
    with child() as asked:
        start = asked.next()
        reads = asked.round()

    assert isinstance(start, Start)
    assert [gpu.uuid for gpu in start.gpus] == [uuid(index) for index in range(8)]
    assert [read.uuid for read in reads] == [uuid(index) for index in range(8)]
    rows = load_tables().fields
    assert [name for read in reads for name, value in read.fields.items() if rows[name].is_bad(value)] == []
    assert all(read.links == tuple(range(18)) and not read.errors for read in reads)


def test_every_field_has_its_row_in_the_catalogue() -> None:
    assert set(FIELDS) <= set(load_tables().fields)


def test_each_fault_is_read_from_its_own_field(driver: Driver) -> None:
    driver.gpu(0, recovery_action=4, ecc_dbe=3, ecc_sbe=9, remapped_pending=1)
    driver.gpu(1, remapped_failure=1, remapped_uncorrectable=513, sram_threshold=1, pcie_replays=81)
    driver.gpu(2, nvlink_crc_flit=5, nvlink_replay=2, nvlinks_active=17)
    driver.gpu(3, clock_reasons=0x8 | 0x40 | 0x80 | 0x4, pcie_width=8, pcie_generation=3)
    with child() as asked:
        asked.next()
        zero, one, two, three = [read.fields for read in asked.round()][:4]

    assert (zero["recovery_action"], zero["ecc_uncorrectable"], zero["ecc_correctable"]) == (4, 3, 9)
    assert zero["row_remap_pending"] == 1
    assert (one["row_remap_failed"], one["row_remap_uncorrectable"], one["sram_threshold"]) == (1, 513, 1)
    assert one["pcie_replays"] == 81
    assert two["nvlink_errors"] == 7
    assert (three["clocks_hw_slowdown"], three["clocks_hw_thermal"], three["clocks_power_brake"]) == (8, 64, 128)
    assert (three["pcie_width_lost"], three["pcie_generation_lost"]) == (8, 2)


def test_a_low_link_generation_at_idle_says_nothing(driver: Driver) -> None:
    driver.gpu(0, pcie_generation=1, clock_reasons=1)
    driver.gpu(1, pcie_generation=1, pstate=8)
    with child() as asked:
        asked.next()
        reads = asked.round()

    assert all("pcie_generation_lost" not in read.fields for read in reads[:2])


def test_a_lost_gpu_does_not_hide_the_others(driver: Driver) -> None:
    with child() as asked:
        asked.next()
        asked.round()
        driver.gpu(3, error=LOST)
        asked.round()  # it may have begun before
        reads = asked.round()

    assert (reads[3].uuid, reads[3].lost) == (uuid(3), "GPU is lost")
    assert [read.index for read in reads if read.lost is None] == [0, 1, 2, 4, 5, 6, 7]


def test_a_gpu_that_needs_a_reset_says_so_as_its_recovery_action(driver: Driver) -> None:
    with child() as asked:
        asked.next()
        asked.round()
        driver.gpu(2, error=RESET_REQUIRED)
        asked.round()  # it may have begun before
        read = asked.round()[2]

    assert (dict(read.fields), read.links, read.lost) == ({"recovery_action": 1}, None, None)


def test_an_xid_event_comes_at_once_and_names_its_gpu(driver: Driver) -> None:
    with child(every=60) as asked:
        asked.next()
        asked.round()
        driver.xid(5, 79)
        event = asked.next()

    assert isinstance(event, XidEvent)
    assert (event.code, event.uuid, event.instance) == (79, uuid(5), None)


@pytest.mark.parametrize(("code", "words"), [(NOT_LOADED, "Driver Not Loaded"), (MISMATCH, "version mismatch")])
def test_a_driver_that_is_gone_ends_it_with_the_reason(driver: Driver, code: int, words: str) -> None:
    driver.set(init=code)
    with child() as asked:
        off = asked.next()

        assert isinstance(off, Off)
        assert words in off.why
        assert asked.process.wait() == 1


def test_a_driver_that_goes_away_in_between_ends_it_too(driver: Driver) -> None:
    with child() as asked:
        asked.next()
        asked.round()
        driver.gpu(0, error=NOT_LOADED)
        off = asked.until(Off)[-1]

    assert isinstance(off, Off)
    assert off.why == "Driver Not Loaded"


def test_a_machine_without_the_library_says_so(tmp_path: Any) -> None:
    program = "import sys; sys.modules['pynvml'] = None; from agents.nvml_child import main; main(['--every', '1'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "install gpu-runbooks[node]" in json.loads(done.stdout)["why"]


# -- a real GPU


@pytest.fixture
def real_driver() -> None:
    """Skips, or fails where it is required, without a driver of NVIDIA's that lists a GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        missing("gpu", f"no driver of NVIDIA's answers here: {error}")
    if not count:
        missing("gpu", "the driver lists no GPU")


def test_a_real_gpu_is_read_and_nothing_is_made_up(real_driver: None) -> None:
    with child(every=0.5) as asked:
        start = asked.next()
        first, second = asked.round(), asked.round()

    assert isinstance(start, Start)
    assert start.gpus
    assert all(gpu.uuid and gpu.uuid.startswith("GPU-") for gpu in start.gpus)
    assert [read.uuid for read in first] == [read.uuid for read in second] == [gpu.uuid for gpu in start.gpus]
    rows = load_tables().fields
    for read in first:
        assert read.lost is None
        assert {"pcie_width_lost", "clocks_hw_slowdown"} <= set(read.fields) <= set(rows)

"""The node's agent as a process: from the kernel's log and NVIDIA's driver to the watch on a real Temporal server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients.app import main
from tests.agents.driver import Driver, built, uuid
from tests.clients.stage import Invoke, Stage
from tests.temporal.waiting import wait
from workers.agent import make_app

AGENT = (sys.executable, "-c", "from workers.agent import main; main()")
LIMIT = 60.0


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_folder: Path, tmp_path: Path) -> Driver:
    return Driver(tmp_path / "nvml.control", nvml_folder)


@contextmanager
def agent(stage: Stage, driver: Driver, where: str, log: Path, **more: str) -> Iterator[Path]:
    """Runs it; gives the file of its words. Ends it in good order and sees that nothing of it is left."""
    words = log.with_suffix(".words")
    with words.open("wb") as out:
        process = subprocess.Popen(
            [*AGENT, where, "--kmsg", str(log), "--state", str(log.with_suffix(".state")), "--every", "1s"],
            env={**stage.env(), **driver.environment, "GPU_RUNBOOKS_LOG": "json", **more},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield words
        assert process.poll() is None, words.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, words.read_text()
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def xid(sequence: int, bus: str, text: str) -> str:
    stamp = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    return f"4,{sequence},{stamp},-;NVRM: Xid (PCI:0000:{bus}:00): {text}\n"


def known(invoke: Invoke, node: str) -> dict[str, str | None]:
    """What the store has on the node: code -> GPU."""
    said = invoke("why", node, "-o", "json")
    return {piece["code"]: piece["gpu"] for piece in said.json["evidence"]} if said.code == 0 else {}


def test_a_line_of_the_kernel_and_a_fault_of_the_driver_reach_the_watch_and_are_judged(
    stage: Stage, invoke: Invoke, driver: Driver, tmp_path: Path
) -> None:
    stage.policy(isolate="approve")
    log = tmp_path / "kmsg"
    log.write_text(xid(1, "a2", "79, pid=1, GPU has fallen off the bus."))
    with agent(stage, driver, "alpha/alpha6", log):
        wait(lambda: "79" in known(invoke, "alpha/alpha6"), LIMIT)
        driver.gpu(5, recovery_action=2)
        wait(lambda: "recovery_action" in known(invoke, "alpha/alpha6"), LIMIT)

    assert known(invoke, "alpha/alpha6") == {"79": uuid(2), "recovery_action": uuid(5)}
    verdict = invoke("why", "alpha/alpha6", "-o", "json").json["verdict"]
    assert (verdict["fault"], verdict["culprit"]["node"]) == ("hardware", "alpha6")

    with agent(stage, driver, "alpha/alpha6", log) as words:
        with log.open("a") as out:
            out.write(xid(2, "a3", "48, pid=1, Double Bit ECC Error"))
        wait(lambda: "48" in known(invoke, "alpha/alpha6"), LIMIT)
    assert words.read_text().count("seen: ") == 1, "the second process tells only what is new"


def test_evidence_waits_for_a_server_that_is_away_and_for_a_name_that_is_wrong(
    stage: Stage, invoke: Invoke, driver: Driver, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(xid(1, "a1", "31, pid=1, name=python3, MMU Fault"))
    with agent(stage, driver, "beta/beta4", log, TEMPORAL_ADDRESS="127.0.0.1:1") as words:
        wait(lambda: "no Temporal server answers" in words.read_text(), LIMIT)
        wait(lambda: "seen: kernel xid 31" in words.read_text(), LIMIT)
    with agent(stage, driver, "beta/nobody", tmp_path / "kmsg2") as words:
        wait(lambda: "has no node 'nobody'" in words.read_text(), LIMIT)
    assert "31" not in known(invoke, "beta/beta4")

    with agent(stage, driver, "beta/beta4", log):
        wait(lambda: "31" in known(invoke, "beta/beta4"), LIMIT)


def test_wrong_words_are_refused_with_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["alpha/a b"], "no name of a node"),
        (["alpha/a1", "--every", "0.1s"], "at least 1s"),
        (["alpha/a1", "--hang-after", "90"], "say the unit"),
    ):
        assert main(make_app(), words) == 2
        assert said in capsys.readouterr().err


def test_without_temporal_it_prints_what_the_evidence_command_takes(
    stage: Stage, invoke: Invoke, driver: Driver, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(xid(1, "a1", "43, pid=1, name=python3, Ch 00000010"))
    words = tmp_path / "printed"
    with words.open("wb") as out:
        process = subprocess.Popen(
            [*AGENT, "beta/beta3", "--print", "--kmsg", str(log), "--state", str(tmp_path / "state")],
            env={**stage.env(), **driver.environment},
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        wait(lambda: b"\n" in words.read_bytes(), LIMIT)
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0

    sent = invoke("evidence", "beta/beta3", str(words), "-o", "json").json
    assert (sent["sent"], sent["dropped"]) == (1, {})

"""The node's quick check, through the real pynvml, against a stand-in driver library built here."""

import json
import subprocess
import sys

from tests.agents.driver import LOST, NOT_LOADED, Driver, uuid


def run_check() -> tuple[int, dict[str, object]]:
    done = subprocess.run([sys.executable, "-m", "agents.check", "--expect", "8"], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def test_all_gpus_answering_pass(driver: Driver) -> None:
    uuids = [uuid(index) for index in range(8)]
    assert run_check() == (0, {"ok": True, "gpus": 8, "uuids": uuids, "detail": "8 of 8 GPUs answer"})


def test_a_missing_gpu_fails(driver: Driver) -> None:
    driver.set(gpus=7)

    code, said = run_check()

    assert (code, said["ok"], said["gpus"]) == (1, False, 7)


def test_a_gpu_that_is_listed_and_lost_fails(driver: Driver) -> None:
    driver.gpu(3, error=LOST)

    code, said = run_check()

    assert (code, said["gpus"]) == (1, 7)
    assert uuid(3) not in str(said["uuids"])
    assert "GPU 3: GPU is lost" in str(said["detail"])


def test_a_dead_driver_is_no_verdict_on_the_node(driver: Driver) -> None:
    driver.set(init=NOT_LOADED)

    code, said = run_check()

    assert (code, said["gpus"]) == (2, None)
    assert "Driver Not Loaded" in str(said["detail"])

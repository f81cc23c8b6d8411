"""dcgm-exporter: bad fields are told with their number, a gauge is a hint, a blank is not "well"."""

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import FaultClass, Kind
from fleet.faults.sources.dcgm_metrics import read_dcgm_metrics
from fleet.faults.texts import Origin, Parsed
from tests.faults.making import NOW, TABLES, UUID, xid

ORIGIN = Origin(cluster="alpha", node="alpha2", seen_at=NOW, boot="boot-2")


def sample(name: str, value: object, more: str = "", uuid: str = UUID) -> str:
    labels = f'gpu="3",UUID="{uuid}",pci_bus_id="00000000:AB:00.0",device="nvidia3",Hostname="alpha2"{more}'
    return f"# HELP {name} x\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n"


def read(*samples: str) -> Parsed:
    return read_dcgm_metrics("".join(samples), ORIGIN)


@pytest.mark.parametrize(
    ("name", "value", "code", "fault", "rung"),
    [
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", 2, "recovery_action", FaultClass.HARDWARE, "reboot"),
        ("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 4, "recovery_action", FaultClass.HARDWARE, "reset"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "row_remap_failed", FaultClass.HARDWARE, "person"),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "row_remap_pending", FaultClass.INFORMATIONAL, "none"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, "ecc_uncorrectable", FaultClass.HARDWARE, "reset"),
        ("DCGM_FI_DEV_XID_ERRORS", 79, "xid_gauge", FaultClass.INFORMATIONAL, "none"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 64, "clocks_hw_thermal", FaultClass.INFORMATIONAL, "none"),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 4, "fabric_failed", FaultClass.HARDWARE, "reboot"),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 2, "fabric_in_progress", FaultClass.INFORMATIONAL, "none"),
    ],
)
def test_a_bad_field_is_told_with_its_number(name: str, value: int, code: str, fault: FaultClass, rung: str) -> None:
    (e,) = read(sample(name, value)).evidence
    assert (e.kind, e.code, e.value, e.gpu, e.pci, e.node) == (
        Kind.GPU_FIELD,
        code,
        value,
        UUID,
        "0000:ab:00",
        "alpha2",
    )
    assert f"{name}" in e.detail
    verdict = classify([e], tables=TABLES, boot="boot-2", now=NOW)
    assert (verdict.fault, verdict.first_rung) == (fault, rung)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", 0),
        ("DCGM_FI_DEV_XID_ERRORS", 0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", 3),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 80),
    ],
)
def test_a_field_that_is_well_is_counted_and_no_evidence(name: str, value: int) -> None:
    found = read(sample(name, value))
    assert found.evidence == ()
    assert found.dropped["a field is well"] >= 1


def test_a_narrow_pcie_link_is_seen_from_two_metrics() -> None:
    link = [sample("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 16), sample("DCGM_FI_DEV_PCIE_LINK_WIDTH", 8)]
    (e,) = read(*link).evidence
    assert (e.code, e.value) == ("pcie_width_lost", 8)
    assert read(link[0]).evidence == ()


def test_a_gauge_is_a_hint_and_never_a_second_fault() -> None:
    gauge = read(sample("DCGM_FI_DEV_XID_ERRORS", 31), sample("DCGM_EXP_XID_ERRORS_COUNT", 1, ',xid="31"')).evidence
    earlier = xid(31, ago=3600, gpu=UUID)
    assert classify(gauge, history=[earlier], tables=TABLES, boot="boot-2", now=NOW).fault is FaultClass.INFORMATIONAL
    both = classify([*gauge, earlier], tables=TABLES, boot="boot-2", now=NOW)
    assert both.rule == "xid:31"


def test_a_field_from_before_the_reboot_is_void() -> None:
    (e,) = read(sample("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2)).evidence
    assert classify([e], tables=TABLES, boot="boot-3", now=NOW).rule == "no_evidence"


@pytest.mark.parametrize("value", ["9223372036854775794", "2147483632", "NaN", "+Inf", "x"])
def test_a_field_that_the_exporter_could_not_read_is_never_well(value: str) -> None:
    found = read(sample("DCGM_FI_DEV_ROW_REMAP_FAILURE", value))
    assert [e.kind for e in found.evidence] == [Kind.UNREADABLE]


def test_two_gpus_and_two_instances_are_told_apart() -> None:
    other = "GPU-5f0c1d2e-0001-4abc-9def-000000000002"
    name = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    found = read(sample(name, 1), sample(name, 1, uuid=other), sample(name, 1, ',GPU_I_ID="5"')).evidence
    assert len({(e.gpu, e.detail) for e in found}) == len(found) == 3
    assert "MIG instance 5" in found[2].detail


def test_several_samples_of_one_gpu_count_by_the_worst() -> None:
    name = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    (e,) = read(sample(name, 0, ',pod="a"'), sample(name, 3, ',pod="b"'), sample(name, 1, ',pod="c"')).evidence
    assert e.value == 3


@pytest.mark.parametrize(
    "text", ["", "hello\n", "node_load1 0.5\n", "DCGM_FI_DEV_X{ 1\n", "DCGM_" + "{" * 90_000, b"\x00\xff" * 900]
)
def test_what_holds_no_metric_of_dcgm_is_unreadable(text: str | bytes) -> None:
    assert [e.kind for e in read_dcgm_metrics(text, ORIGIN).evidence] == [Kind.UNREADABLE]


def test_other_metrics_are_counted() -> None:
    found = read(sample("DCGM_FI_DEV_GPU_TEMP", 50), "node_load1 0.5\n")
    assert found.evidence == ()
    assert found.dropped == {"a metric without a row in the catalogue": 1, "no metric of DCGM": 1}

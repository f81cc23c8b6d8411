"""The catalogue holds what it promises, and its loader refuses what it cannot trust."""

import json
from importlib import resources

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.evidence import FaultClass
from fleet.faults.patterns import safe_pattern
from fleet.faults.tables import RUNGS, Tables, build_tables, load_tables
from fleet.policy import Override

FILES = (
    "xid.csv",
    "sxid.csv",
    "recovery_actions.csv",
    "exit_codes.csv",
    "log_text.csv",
    "scheduler_reasons.csv",
    "node_conditions.csv",
)


@pytest.fixture
def texts() -> dict[str, str]:
    folder = resources.files("fleet.faults").joinpath("catalogue")
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in FILES}


def tables() -> Tables:
    return load_tables()


def test_every_xid_of_the_shared_table_is_there() -> None:
    assert set(tables().xid) == {*range(1, 177), 185}
    assert len(tables().xid) == 177


def test_a_gpu_that_fell_off_the_bus_starts_with_a_reboot_for_a_reset_cannot_reach_it() -> None:
    row = tables().xid[79]
    assert (row.fault, row.first_rung, row.gpu_reset_ok, row.scope) == (FaultClass.HARDWARE, "reboot", False, "node")


@pytest.mark.parametrize(
    ("code", "rung"),
    [
        *((code, "reset") for code in (48, 62, 64, 95, 109, 110, 119, 120, 140, 143, 156, 158)),
        *((code, "reboot") for code in (79, 151, 167)),
        *((code, "person") for code in (1, 54, 142)),
        *((code, "none") for code in (13, 31, 43, 45, 63, 94)),
    ],
)
def test_the_first_rung_is_nvidias_action(code: int, rung: str) -> None:
    assert tables().xid[code].first_rung == rung


def test_no_row_asks_for_a_reset_that_cannot_reach_the_gpu() -> None:
    assert [r.xid for r in tables().xid.values() if r.first_rung == "reset" and not r.gpu_reset_ok] == []


def test_only_hardware_rows_ask_for_a_repair() -> None:
    by_software = {155}  # NVIDIA resets it although software took the link down
    asks = {r.xid for r in tables().xid.values() if r.first_rung != "none" and r.fault is not FaultClass.HARDWARE}
    assert asks == by_software
    idle = [r.xid for r in tables().xid.values() if r.first_rung == "none" and r.fault is FaultClass.HARDWARE]
    assert idle == []


def test_every_row_cites_its_source() -> None:
    t = tables()
    for group in (t.xid, t.sxid, t.recovery, t.exits, t.texts, t.reasons):
        assert all(row.source.strip() and row.title.strip() for row in group.values())


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("xid.csv", ",hardware,reboot,no,node,", ",broken,reboot,no,node,", "xid.csv, line 80: class"),
        ("xid.csv", ",hardware,reboot,no,node,", ",hardware,kick,no,node,", "line 80: first_rung"),
        ("xid.csv", "\n79,", "\n78,", "78 stands twice"),
        ("sxid.csv", "\n10002,", "\n10001,", "10001 stands twice"),
        ("log_text.csv", "uncorrectable ECC error", "(a+)+ ECC error", "repeat inside a repeat"),
        ("log_text.csv", "\ncuda_fabric_not_ready,", "\ncuda_ecc,", "cuda_ecc stands twice"),
        ("exit_codes.csv", "137,SIGKILL,unknown,yes", "137,SIGKILL,unknown,perhaps", "secondary"),
        ("node_conditions.csv", "KernelReady,False", "KernelReady,Sometimes", "bad"),
        ("node_conditions.csv", "StorageReady,", "KernelReady,", "KernelReady stands twice"),
        ("scheduler_reasons.csv", "node,Prolog error,", "pod,Prolog error,", "applies"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(texts: dict[str, str], name: str, old: str, new: str, says: str) -> None:
    assert old in texts[name]
    texts[name] = texts[name].replace(old, new, 1)
    with pytest.raises(InvalidInputError, match=says):
        build_tables(texts)


def test_an_empty_table_is_refused(texts: dict[str, str]) -> None:
    texts["xid.csv"] = texts["xid.csv"].splitlines()[0]
    with pytest.raises(InvalidInputError, match="no rows"):
        build_tables(texts)


def test_the_version_is_that_of_the_data(texts: dict[str, str]) -> None:
    assert build_tables(texts).version == load_tables().version
    texts["exit_codes.csv"] = texts["exit_codes.csv"].replace("ended with success", "all well", 1)
    assert build_tables(texts).version != load_tables().version


def test_an_override_changes_its_values_and_the_version_only() -> None:
    override = Override.model_validate_json(
        json.dumps({"xid": 94, "class": "hardware", "why": "no contained errors on our A100"})
    )
    changed = tables().with_overrides([override])
    row = changed.xid[94]
    assert (row.fault, row.first_rung, row.title) == (FaultClass.HARDWARE, "none", tables().xid[94].title)
    assert row.overridden == "no contained errors on our A100"
    assert changed.version != tables().version
    assert {k: v for k, v in changed.xid.items() if k != 94} == {k: v for k, v in tables().xid.items() if k != 94}
    assert tables().xid[94].fault is FaultClass.TRANSIENT
    assert tables().with_overrides([]).version == tables().version


def test_an_override_may_name_a_code_that_the_catalogue_lacks() -> None:
    override = Override.model_validate_json(
        json.dumps({"xid": 999, "first_rung": "power_cycle", "why": "our vendor says so"})
    )
    row = tables().with_overrides([override]).xid[999]
    assert (row.fault, row.first_rung) == (FaultClass.UNKNOWN, "power_cycle")


def test_two_overrides_of_one_code_are_refused() -> None:
    override = Override.model_validate_json(json.dumps({"xid": 94, "first_rung": "reset", "why": "x"}))
    with pytest.raises(InvalidInputError, match="twice"):
        tables().with_overrides([override, override])


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a*)*b",
        "(?:a|aa)+b",
        "(a{1,9}){2,}b",
        r"(a)b\1",
        "(?P<x>a)(?P=x)",
        "a.*b.*c.*d",
        "(a",
        "a*",
        "((a+)b)*c",
    ],
)
def test_a_pattern_that_may_run_away_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError):
        safe_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["[+*(]+a", r"\(a\)+", "(?:ab)?c", "a{0,200}b", "(?:a|b)c", "(a)(b)c.*d", "[]a]+b"]
)
def test_a_harmless_pattern_is_taken(pattern: str) -> None:
    assert safe_pattern(pattern).pattern == pattern


@pytest.mark.parametrize("text", ["137", "-9", "SIGKILL", "sigkill", "signal 9", "exit:137"])
def test_one_exit_has_many_spellings(text: str) -> None:
    row = tables().exit(text)
    assert row is not None
    assert row.code == 137


@pytest.mark.parametrize("text", ["", "999", "SIGFROB", "-", "1.5", "one"])
def test_an_exit_that_is_not_in_the_table_has_no_row(text: str) -> None:
    assert tables().exit(text) is None


@pytest.mark.parametrize("text", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_one_reason_has_many_spellings(text: str) -> None:
    row = tables().reason("job", text)
    assert row is not None
    assert row.fault is FaultClass.HARDWARE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Not responding [slurm@2026-01-02T03:04:05]", "Not responding"),
        ("low real_memory size (500011 < 512000)", "Low RealMemory"),
        ("Low RealMemory (reported:500011 < 100.00% of configured:512000)", "Low RealMemory"),
        ("NHC: x; Kill task failed [root@2026-01-02]", "Kill task failed"),
        ("moved to the lab, not responding to mails", None),
    ],
)
def test_a_nodes_reason_is_known_by_how_a_part_of_it_begins(text: str, reason: str | None) -> None:
    row = tables().reason("node", text)
    assert (row.reason if row else None) == reason


def test_rungs_go_from_mild_to_wide() -> None:
    assert RUNGS == ("none", "reset", "reboot", "power_cycle", "person")

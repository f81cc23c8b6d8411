"""The catalogue holds what it promises, and its loader refuses what it cannot trust."""

import json
from importlib import resources

import pytest

from fleet.errors import InvalidInputError
from fleet.faults.evidence import FaultClass
from fleet.faults.overrides import KINDS
from fleet.faults.patterns import safe_pattern
from fleet.faults.tables import FILES, RUNGS, Tables, build_tables, load_tables
from fleet.policy_overrides import ROW_KINDS, Override


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
        *((code, "reset") for code in (48, 62, 64, 95, 109, 119, 120, 140, 143, 156, 158)),
        (110, "power_cycle"),  # NVIDIA's bucket is a reset, its text asks for a cold one
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
    for group in (
        t.xid,
        t.sxid,
        t.recovery,
        t.exits,
        t.texts,
        t.reasons,
        t.conditions,
        t.dcgm,
        t.fields,
        t.kernel_texts,
        t.link_bits,
    ):
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
        ("dcgm_errors.csv", "4,VOLATILE_DBE_DETECTED,isolate", "4,VOLATILE_DBE_DETECTED,dire", "severity"),
        ("dcgm_errors.csv", "\n5,", "\n4,", "4 stands twice"),
        ("gpu_fields.csv", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,>0", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,some", "bad"),
        ("gpu_fields.csv", "\nsram_threshold,", "\nrow_remap_failed,", "row_remap_failed stands twice"),
        ("kernel_text.csv", "hard LOCKUP on cpu", "(?:hard ?){4}LOCKUP", "repeat inside a repeat"),
        ("kernel_text.csv", "\nhung_task,", "\nsoft_lockup,", "soft_lockup stands twice"),
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
        "(a?){30}a{30}",
        "((?:a|b)c)+d",
        "a{0,999}a{0,999}b",
        "a.*b.*c",
        "(a)?(?(1)b|c)d",
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


def own(**words: object) -> Override:
    return Override.model_validate_json(json.dumps({"why": "ours", **words}))


@pytest.mark.parametrize(
    ("words", "attribute", "key"),
    [
        ({"xid": 94}, "xid", 94),
        ({"sxid": 22013}, "sxid", 22013),
        ({"recovery_action": 3}, "recovery", 3),
        ({"dcgm_error": 30}, "dcgm", "30"),
        ({"gpu_field": "pcie_replays"}, "fields", "pcie_replays"),
        ({"exit_code": 255}, "exits", 255),
        ({"log_text": "no_space"}, "texts", "no_space"),
        ({"kernel_text": "nic_link_down"}, "kernel_texts", "nic_link_down"),
        ({"job_reason": "Evicted"}, "reasons", ("job", "evicted")),
        ({"node_reason": "Low RealMemory"}, "reasons", ("node", "lowrealmemory")),
        ({"node_condition": "StorageReady"}, "conditions", "StorageReady"),
    ],
)
def test_every_kind_of_row_can_be_changed(words: dict[str, object], attribute: str, key: object) -> None:
    changed = tables().with_overrides([own(**words, **{"class": "hardware"}, first_rung="power_cycle")])
    row, before = getattr(changed, attribute)[key], getattr(tables(), attribute)[key]
    assert (row.fault, row.first_rung if hasattr(row, "first_rung") else "power_cycle") == ("hardware", "power_cycle")
    assert (row.overridden, row.title, row.source) == ("ours", before.title, before.source)
    assert list(getattr(changed, attribute)) == list(getattr(tables(), attribute))
    assert changed.version != tables().version


def test_the_keys_of_an_override_are_those_that_the_catalogue_knows() -> None:
    assert tuple(KINDS) == ROW_KINDS


@pytest.mark.parametrize(
    ("words", "attribute", "key"),
    [
        ({"sxid": 28006, "class": "hardware"}, "sxid", 28006),
        ({"exit_code": 201, "class": "hardware"}, "exits", 201),
        ({"job_reason": "SITE_SPECIAL", "class": "user"}, "reasons", ("job", "sitespecial")),
        ({"node_reason": "fan failed", "class": "hardware"}, "reasons", ("node", "fanfailed")),
        ({"node_condition": "OurAgentUnhappy", "class": "hardware"}, "conditions", "OurAgentUnhappy"),
        ({"log_text": "our_loader", "pattern": "OurLoader gave up", "class": "transient"}, "texts", "our_loader"),
    ],
)
def test_a_fleet_adds_rows_of_its_own_and_they_are_tried_first(
    words: dict[str, object], attribute: str, key: object
) -> None:
    rows = getattr(tables().with_overrides([own(**words)]), attribute)
    assert next(iter(rows)) == key
    assert (rows[key].fault, rows[key].source, rows[key].overridden) == (words["class"], "this fleet", "ours")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"log_text": "cuda_ec", "class": "user"}, "did you mean cuda_ecc"),
        ({"kernel_text": "nope", "pattern": "x y", "class": "user"}, "no such row"),
        ({"log_text": "ours", "pattern": "(a+)+b"}, "may run away"),
        ({"log_text": "ours", "pattern": "(a"}, "does not compile"),
        ({"xid": 94, "pattern": "x"}, "belongs to log_text"),
        ({"node_condition": "StorageReady", "class": "user"}, "Input should be"),
    ],
)
def test_an_override_that_does_not_fit_says_why(words: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        tables().with_overrides([own(**words)])


def test_every_error_that_dcgm_has_is_there_and_a_failed_remap_is_no_matter_of_a_reset() -> None:
    errors = [int(key) for key in tables().dcgm if key.isdigit()]
    assert errors == list(range(133))
    assert {key for key in tables().dcgm if not key.isdigit()} == {f"severity:{n}" for n in range(7)}
    assert (tables().dcgm["80"].severity, tables().dcgm["80"].first_rung) == ("reset", "person")


@pytest.mark.parametrize(
    ("bad", "value", "says"), [(">0", 0, False), (">0", 1, True), ("=4", 4, True), ("=4", 5, False)]
)
def test_a_field_is_bad_above_or_at_a_value(bad: str, value: float, says: bool) -> None:
    row = tables().fields["ecc_uncorrectable"].model_copy(update={"bad": bad})
    assert row.is_bad(value) is says


def test_every_line_that_a_kernel_pattern_matches_has_its_mark() -> None:
    for row in tables().kernel_texts.values():
        assert row.mark in row.pattern.replace("\\", ""), row.id


def test_rungs_go_from_mild_to_wide() -> None:
    assert RUNGS == ("none", "reset", "reboot", "power_cycle", "person")

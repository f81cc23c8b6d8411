"""Kernel lines in every shape (fault taxonomy, section 5) become evidence, and nothing is lost in silence."""

import pytest

from fleet.faults.evidence import EARLIER_BOOT, Evidence, Kind
from fleet.faults.kernel_log import MAX_EVENTS, MAX_PER_GPU_AND_CODE, NOT_OURS, read_kernel_log
from fleet.faults.parse import Parsed, parse_kernel_log
from tests.faults.making import NOW, UUID

X = "NVRM: Xid (PCI:0000:1b:00): "
SHAPES = [
    ("1 very old, no PCI:", "NVRM: Xid (0000:0a:00): 14, Channel 00000001", "14", "0000:0a:00"),
    (
        "2 no pid",
        "NVRM: Xid (PCI:0000:0b:00): 31, Ch 0000003b, intr 10000000. MMU Fault: ENGINE GRAPHICS",
        "31",
        "0000:0b:00",
    ),
    ("3 quoted pid", X + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "79", "0000:1b:00"),
    (
        "4 free text",
        X + "31, pid=4711, name=pt_main_thread, Ch 0000000e, intr 00000000. MMU Fault: faulted",
        "31",
        "0000:1b:00",
    ),
    (
        "5 with place",
        X + "13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out",
        "13",
        "0000:1b:00",
    ),
    (
        "6 remap",
        X + "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
        "63",
        "0000:1b:00",
    ),
    (
        "6 Volta",
        X + "63, Dynamic Page Retirement: New retired page, reload the driver to activate",
        "63",
        "0000:1b:00",
    ),
    (
        "7 remap failed",
        X + "64, pid=1, name=x, Row Remapper Error: (0x000000000012abcd) - All reserved rows",
        "64",
        "0000:1b:00",
    ),
    ("8 contained, old", X + "94, pid=7, name=python3, Ch 00000008", "94", "0000:1b:00"),
    (
        "8 contained, flags",
        X + "94, pid=7, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
        "94",
        "0000:1b:00",
    ),
    ("9 MIG", "NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:00): 94, pid=7, name=python3, Ch 8", "94", "0000:1b:00"),
    (
        "10 NVLink 5",
        X + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 (0x00a046c6 0x00000000 0x0 0x0 0x0 0x0)",
        "149",
        "0000:1b:00",
    ),
    (
        "11 recovery",
        X + "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        "154",
        "0000:1b:00",
    ),
    (
        "12 NVLink",
        X + "74, pid=1, name=x, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0)",
        "74",
        "0000:1b:00",
    ),
    ("14 bare code", X + "46", "46", "0000:1b:00"),
    ("14 code and channel", X + "46, Ch 00000010", "46", "0000:1b:00"),
    (
        "15 GSP",
        X + "119, pid=9, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU0 GSP!",
        "119",
        "0000:1b:00",
    ),
    ("16 class error", X + "69, pid=9, Class Error: ChId 0008, Class 0000cbc0, Offset 00000000", "69", "0000:1b:00"),
    ("16 channel", X + "32, Channel ID 0000000e intr0 00040000", "32", "0000:1b:00"),
    ("17 cleanup", X + "45, pid=9, name=ray::Worker, Ch 00000010, caused by Xid 48", "45", "0000:1b:00"),
    ("8-digit domain", "NVRM: Xid (PCI:00000000:AB:00.0): 79, pid=1, name=[a b]", "79", "0000:ab:00"),
]
PREFIXES = [
    "",
    "[   12.345678] ",
    "[ 7812.345678][  T431] ",
    "<4>[   12.345678] ",
    "kern  :warn  : [   12.345678] ",
    "[Thu Jan  2 03:04:05 2026] ",
    "Jan  2 03:04:05 alpha2 kernel: [   12.345678] ",
    "Jan 12 03:04:05 alpha2.example.org kernel: ",
    "2026-01-02T03:04:05.123456+01:00 alpha2 kernel: ",
    "2026-01-02T03:04:05,123456+00:00 ",
    "2026-01-02T03:04:05+0000 alpha2 kernel: [12.3] ",
    "4,1234,98765432,-;",
    "4,1234,98765432,-,caller=T1;",
]


def read(text: str | bytes, node: str = "alpha2") -> Parsed:
    return read_kernel_log(text, cluster="alpha", node=node, seen_at=NOW, boot="boot-2")


def only(text: str | bytes) -> Evidence:
    found = read(text).evidence
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("name", "line", "code", "pci"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_every_shape_is_read_behind_every_prefix(prefix: str, name: str, line: str, code: str, pci: str) -> None:
    e = only(prefix + line + "\n")
    assert (e.kind, e.code, e.gpu, e.node, e.boot) == (Kind.XID, code, pci, "alpha2", "boot-2")
    assert line[:60] in e.detail


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
            "28006",
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "20034"),
        ("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 22013, Severity 1 Engine instance 00", "22013"),
        ("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 012028", "12028"),
    ],
)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_switch_errors_are_read_and_blame_no_gpu(prefix: str, line: str, code: str) -> None:
    e = only(prefix + line)
    assert (e.kind, e.code, e.gpu, e.pci) == (Kind.SXID, code, None, "0000:c1:00")


@pytest.mark.parametrize(
    "text",
    [
        "[ 1.0] NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
        "[ 1.0] NVRM: The NVIDIA GPU 0000:29:00.0\n[ 1.0] NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "[ 1.0] NVRM: fallen off the bus and is not responding to commands.",
        "[ 1.0] NVRM: The NVIDIA GPU 0000:29:00.0\n(PCI ID: 10de:2330) installed in this\nfallen off the bus",
        "NVRM: The NVIDIA GPU 0000:29:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and",
    ],
)
def test_a_loss_without_an_xid_is_found_in_every_form(text: str) -> None:
    e = only(text)
    assert (e.kind, e.gpu) == (Kind.GPU_LOST, "0000:29:00")


def test_interleaved_three_line_messages_name_both_gpus() -> None:
    text = "NVRM: The NVIDIA GPU 0000:29:00.0\nNVRM: The NVIDIA GPU 0000:2a:00.0\n" + "NVRM: fallen off the bus\n" * 2
    assert [e.gpu for e in read(text).evidence] == ["0000:29:00", "0000:2a:00"]


def test_a_loss_that_an_xid_79_tells_is_not_told_twice() -> None:
    line = "[ {}] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.\n"
    assert only(line.format("100.0") + "[ 101.0] " + X + "79, GPU has fallen off the bus.").code == "79"
    far = read(line.format("100.0") + "[ 1000.0] " + X + "79, GPU has fallen off the bus.").evidence
    assert [e.kind for e in far] == [Kind.GPU_LOST, Kind.XID]
    other = read(line.format("100.0").replace("1b", "1c") + "[ 101.0] " + X + "79, x").evidence
    assert [e.gpu for e in other] == ["0000:1c:00", "0000:1b:00"]


@pytest.mark.parametrize("spelling", ["0000:ab:00", "0000:AB:00", "00000000:AB:00.0"])
@pytest.mark.parametrize("with_map", [True, False])
def test_the_most_conclusive_code_is_kept_when_the_uuid_cannot_be_had(spelling: str, with_map: bool) -> None:
    text = f"[ 5.0] NVRM: GPU at PCI:0000:ab:00: {UUID}\n" if with_map else ""
    text += f"[ 900.0] NVRM: Xid (PCI:{spelling}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    e = only(text)
    assert (e.code, e.pci, e.gpu) == ("79", "0000:ab:00", UUID if with_map else "0000:ab:00")


def test_a_failed_look_up_is_a_second_piece_of_evidence_for_the_same_gpu() -> None:
    text = (
        f"[ 5.0] NVRM: GPU at PCI:0000:ab:00: {UUID}\n"
        "[ 900.0] NVRM: Xid (PCI:0000:ab:00): 79, GPU has fallen off the bus.\n"
        "Unable to determine the device handle for GPU 0000:AB:00.0: GPU is lost.  Reboot the system\n"
    )
    found = read(text)
    assert [(e.kind, e.gpu) for e in found.evidence] == [(Kind.XID, UUID), (Kind.GPU_LOST, UUID)]


def test_siblings_within_five_seconds_are_one_fault_and_later_lines_another() -> None:
    lines = [
        f"[ 100.0] {X}13, pid=1, name=p, Graphics Exception: ESR 0x50=0x1",
        f"[ 100.1] {X}13, pid=1, name=p, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
        f"[ 104.9] {X}13, pid=1, name=p, Graphics Exception: ChID 000e, Class 0000cbc0",
        f"[ 111.0] {X}13, pid=1, name=p, Graphics Exception: ESR 0x50=0x1",
    ]
    first, second = read("\n".join(lines)).evidence
    assert (first.count, second.count) == (3, 1)
    assert "GPC 1, TPC 3" in first.detail


def test_siblings_on_two_gpus_or_instances_stay_apart() -> None:
    lines = [
        f"[ 1.0] {X}94, x",
        "[ 1.1] NVRM: Xid (PCI:0000:1c:00): 94, x",
        "[ 1.2] NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, x",
    ]
    assert len(read("\n".join(lines)).evidence) == 3


def test_lines_whose_text_changes_the_verdict_are_never_merged() -> None:
    lines = [f"[ 1.0] {X}94, Contained. RST: No, D-RST: No", f"[ 1.1] {X}94, Contained. RST: Yes, D-RST: No"]
    lines += [f"[ 1.2] {X}154, GPU recovery action changed from 0x{a} (A) to 0x{b} (B)" for a, b in ((0, 1), (1, 2))]
    assert len(read("\n".join(lines)).evidence) == 4


def test_only_a_stamp_with_a_zone_gives_a_wall_time() -> None:
    assert only("2026-01-02T03:04:05.5+01:00 alpha2 kernel: " + X + "79").happened_at == 1767319445.5
    assert only("2026-01-02T02:04:05.5Z alpha2 kernel: " + X + "79").happened_at == 1767319445.5
    for unknown in ("Jan  2 03:04:05 alpha2 kernel: ", "[ 12.5] ", "2026-01-02 03:04:05 "):
        e = only(unknown + X + "79")
        assert e.happened_at is None
        assert e.stamp is not None


@pytest.mark.parametrize(
    "mark", ["[    0.000000] Linux version 6.1.0-40-amd64", "-- Boot 0123456789abcdef --", "-- Reboot --"]
)
def test_what_stands_before_a_boot_in_the_log_is_of_an_earlier_boot(mark: str) -> None:
    old, new = read(f"[ 900.0] {X}79, old\n{mark}\n[ 12.0] {X}31, new").evidence
    assert (old.boot, new.boot) == (EARLIER_BOOT, "boot-2")


def test_a_fault_of_each_boot_is_its_own_even_at_the_same_second() -> None:
    found = read(f"[ 12.0] {X}31, Ch 1\n[ 0.0] Linux version 6.1\n[ 12.0] {X}31, Ch 1").evidence
    assert [e.boot for e in found] == [EARLIER_BOOT, "boot-2"]


def test_another_hosts_boot_says_nothing_about_this_node() -> None:
    text = f"Jan  2 03:04:05 alpha2 kernel: {X}79, x\nJan  2 03:04:06 alpha3 kernel: Linux version 6.1\n"
    assert only(text).boot == "boot-2"


def test_another_hosts_lines_in_a_collected_log_are_dropped_and_counted() -> None:
    text = f"Jan  2 03:04:05 alpha2 kernel: {X}31, x\nJan  2 03:04:06 alpha3 kernel: {X}79, x\n"
    found = read(text)
    assert [e.code for e in found.evidence] == ["31"]
    assert found.dropped["another host's line"] == 1
    assert [e.code for e in read(text, node="slurm-name-7").evidence] == ["31", "79"]  # unrelated names: keep all


def test_a_program_that_writes_such_a_line_to_syslog_is_not_the_kernel() -> None:
    found = read(f"Jan  2 03:04:05 alpha2 job.sh[77]: {X}79, GPU has fallen off the bus.")
    assert found.evidence == ()
    assert found.dropped == {"written by a program, not by the kernel": 1}


@pytest.mark.parametrize(
    "line", ["NVRM: Xid (PCI:0000:1b:00", "NVRM: Xid (PCI:0000:1b:00): pid=1", X + "0, x", "NVRM: Xid (): x"]
)
def test_a_marked_line_that_cannot_be_read_is_told_and_counted(line: str) -> None:
    found = read(f"{line}\n{line}\nusb 1-1: new device")
    (e,) = found.evidence
    assert e.kind is Kind.UNREADABLE
    assert e.detail.startswith("2 x ")
    assert sum(found.dropped.values()) == 3
    assert found.dropped[NOT_OURS] == 1


def test_binary_data_is_unreadable_and_not_well() -> None:
    (e,) = read(bytes(range(128, 256)) * 500).evidence
    assert e.kind is Kind.UNREADABLE
    assert "binary" in e.detail


@pytest.mark.parametrize(
    "quiet", ["", "\n\n", "usb 1-1: new device\neth0: link up\n", "NVRM: loading NVIDIA UNIX driver"]
)
def test_a_quiet_log_gives_no_evidence(quiet: str) -> None:
    assert read(quiet).evidence == ()


def test_a_line_of_a_megabyte_is_read_where_it_matters() -> None:
    text = "x" * 500_000 + X + "79, pid=1, " + "y" * 500_000 + "\n" + f"[ 5.0] {X}31, Ch 1"
    found = read(text).evidence
    assert [e.code for e in found] == ["79", "31"]
    assert all(len(e.detail) <= 400 for e in found)


def test_lost_newlines_do_not_hide_a_fault() -> None:
    assert [e.code for e in read(f"[ 1.0] {X}31, Ch 1 [ 1.0] {X}79, off").evidence] == ["31", "79"]


def test_invalid_utf8_and_control_characters_do_not_reach_the_detail() -> None:
    e = only(b"[ 1.0] NVRM: Xid (PCI:0000:1b:00): 79, name=\xff\xfe\x1b[31m\x07evil, off the bus")
    assert e.code == "79"
    assert not any(ord(char) < 32 for char in e.detail)


def test_a_flood_is_bounded_and_said() -> None:
    flood = "\n".join(f"[ {n * 10}.0] {X}31, pid={n}, Ch 1" for n in range(300))
    found = read(f"{flood}\n[ 9999.0] {X}79, off")
    assert [e.code for e in found.evidence] == ["31"] * MAX_PER_GPU_AND_CODE + ["79"]
    assert sum(found.dropped.values()) == 300 - MAX_PER_GPU_AND_CODE
    assert "pid=299," in found.evidence[-2].detail, "the newest are kept"
    many = "\n".join(f"NVRM: Xid (PCI:{n:04x}:1b:00): 31, x" for n in range(MAX_EVENTS + 5))
    last = read(many).evidence[-1]
    assert (last.kind, last.detail[:4]) == (Kind.UNREADABLE, "5 x ")


def test_the_same_log_twice_gives_the_same_keys() -> None:
    text = f"[ 1.0] {X}31, Ch 1\n[ 9.0] {X}31, Ch 1\n"
    one = parse_kernel_log(text, cluster="alpha", node="alpha2", seen_at=NOW, boot="b")
    two = parse_kernel_log(text, cluster="alpha", node="alpha2", seen_at=NOW + 60, boot="b")
    assert [e.key for e in one] == [e.key for e in two]
    assert len({e.key for e in one}) == 2

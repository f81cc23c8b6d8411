"""Kernel lines in every shape (fault taxonomy, section 5) become evidence, and nothing is lost in silence."""

import pytest

from fleet.faults.classify import classify
from fleet.faults.evidence import EARLIER_BOOT, Evidence, FaultClass, Kind
from fleet.faults.kernel_log import MAX_EVENTS, MAX_PER_GPU_AND_CODE, NOT_OURS, KernelLog, read_kernel_log
from fleet.faults.parse import Parsed, parse_kernel_log
from fleet.faults.tables import load_tables
from fleet.faults.xid_text import link_down_reason, link_registers, nvlink_event, sxid_severity
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
    "[  +0.000002] ",
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
    "kernel: [16450076.435595] ",
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


NIC = "mlx5_core 0000:1a:00.1"
TEXTS = [
    (f"{NIC} ens1f1np1: Link down", "nic_link_down", "0000:1a:00"),
    (
        f"{NIC}: print_health_info:541: device's health compromised - reached miss count",
        "nic_health_lost",
        "0000:1a:00",
    ),
    (f"{NIC}: poll_health:976: unrecoverable hardware error", "nic_unrecoverable", "0000:1a:00"),
    (
        f"{NIC}: wait_func:1184: ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
        "nic_command_timeout",
        "0000:1a:00",
    ),
    (f"{NIC}: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link", "nic_narrow", "0000:1a:00"),
    ("NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 7 timed out 5500 ms", "nic_transmit_timeout", None),
    (f"{NIC}: Port module event: module 1, Cable unplugged", "nic_cable_unplugged", "0000:1a:00"),
    (f"{NIC}: Port module event[error]: module 0, Cable error, High Temperature", "nic_hot", "0000:1a:00"),
    ("mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, High Temperature", "nic_hot", None),
    (
        f"{NIC}: mlx5_pcie_event:299:(pid 7): Detected insufficient power on the PCIe slot (27W).",
        "nic_slot_power",
        "0000:1a:00",
    ),
    ("md/raid0:md0: Disk failure on nvme0n1p1 detected, failing array.", "raid_failed", "nvme0n1p1"),
    ("block nvme0n1: no available path - failing I/O", "nvme_no_path", "nvme0n1"),
    ("nvme nvme4: I/O tag 22 (2016) opcode 0x2 QID 0 timeout, reset controller", "nvme_timeout", "nvme4"),
    ("EXT4-fs (dm-0): I/O error while writing superblock", "ext4_superblock", None),
    (
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  "
        "The GPU likely needs to be reset.",
        "gpu_reset_asked",
        "0000:9b:00",
    ),
    (
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        "nvlink_not_found",
        None,
    ),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [mlx5e_napi:99] in mlx5_core", "nic_soft_lockup", None),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python3:99]", "soft_lockup", None),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", "hard_lockup", None),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0", "pcie_fatal", None),
    ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:1b:00.0", "pcie_corrected", None),
    ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB", "oom_job", None),
    ("Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB", "oom_node", None),
    ("python3[77]: segfault at 10 ip 00007f sp 00007f error 4 in libnccl.so.2.21[7f+1]", "segfault_nccl", None),
    ("blk_update_request: I/O error, dev nvme0n1, sector 1234 op 0x0:(READ)", "disk_io_error", "nvme0n1"),
    ("Buffer I/O error on dev sdb1, logical block 7, async page read", "disk_io_error", "sdb1"),
    ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", "nvme_dead", None),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "disk_read_only", None),
    ("XFS (nvme0n1p1): Metadata I/O Error detected. Shutting down filesystem", "xfs_shutdown", None),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2", "ext4_error", None),
    ("nfs: server filer-7.example.org not responding, still trying", "nfs_silent", "filer-7.example.org"),
    ("LustreError: 11-0: scratch-OST0004: operation ost_statfs failed with -107.", "lustre_silent", None),
    ("INFO: task python3:4711 blocked for more than 120 seconds.", "hung_task", None),
    ("BUG: unable to handle page fault for address: ffffb00000000000", "kernel_oops", None),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 5 Bank 7: bd80000000100134", "machine_check", None),
    ("{1}[Hardware Error]: event severity: fatal", "memory_error", None),
]


@pytest.mark.parametrize("prefix", ["[   12.345678] ", "4,1234,98765432,-;", "Jan  2 03:04:05 alpha2 kernel: "])
@pytest.mark.parametrize(
    ("line", "code", "device"), TEXTS, ids=[f"{code}-{at}" for at, (_, code, _) in enumerate(TEXTS)]
)
def test_network_storage_and_memory_lines_are_read_and_blame_no_gpu(
    prefix: str, line: str, code: str, device: str | None
) -> None:
    e = only(prefix + line)
    assert (e.kind, e.code, e.gpu, e.pci) == (Kind.KERNEL_TEXT, code, None, device)


def test_every_kernel_text_of_the_catalogue_has_a_line_here() -> None:
    assert {code for _, code, _ in TEXTS} == set(load_tables().kernel_texts)


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:1a:00.1: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad",
        "mlx5_core 0000:1a:00.1 ens1f1np1: Link up",
        "nvme nvme0: 32/0/0 default/read/poll queues",
        "nfs: server filer OK",
        "python3[77]: segfault at 10 ip 00007f sp 00007f error 4 in libfoo.so[7f+1]",
        "oom_reaper: reaped process 4711 (python3)",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    ],
)
def test_noise_of_the_same_drivers_is_no_evidence(line: str) -> None:
    found = read(f"[ 12.5] {line}")
    assert found.evidence == ()
    assert found.dropped == {NOT_OURS: 1}


@pytest.mark.parametrize(
    ("code", "rest", "severity", "fault"),
    [
        ("28006", ", Non-fatal, Link 46 MC TS crumbstore MCTO (First)", "non-fatal", FaultClass.INFORMATIONAL),
        ("28006", ", Severity 0 Engine instance 00 Sub-engine", "severity 0", FaultClass.INFORMATIONAL),
        ("28006", ", Severity 1 Engine instance 00", "severity 1", FaultClass.UNKNOWN),
        ("28006", ", Fatal, Link 30", "fatal", FaultClass.UNKNOWN),
        ("28006", "", None, FaultClass.UNKNOWN),
        ("20034", ", Fatal, Link 30 LTSSM Fault Up", "fatal", FaultClass.HARDWARE),
        ("11012", ", Fatal, Link 30", "fatal", FaultClass.UNKNOWN),
        ("11012", "", None, FaultClass.INFORMATIONAL),
    ],
)
def test_a_switch_errors_severity_word_raises_and_never_lowers(
    code: str, rest: str, severity: str | None, fault: FaultClass
) -> None:
    e = only(f"[ 1.5] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}{rest}")
    assert sxid_severity(e.detail) == severity
    assert classify([e], tables=load_tables(), now=NOW).fault is fault


def test_the_words_of_an_nvlink_5_line_are_read_with_runs_of_spaces_and_an_unknown_link() -> None:
    words = "0x00a046c6 0x00000000 0x12345678 0x0 0x0 0x0"
    e = only(f"[ 1.5] {X}149, pid=7, name=a b, NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 ({words})")
    found = nvlink_event(e.detail)
    assert found is not None
    assert (found.unit, found.severity, found.link) == ("NETIR_LINK_EVT", "Fatal", -1)
    assert found.words == (0x00A046C6, 0, 0x12345678, 0, 0, 0)
    assert found.down_reason == link_down_reason(e.detail) == 0x0A
    assert nvlink_event(f"{X}149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x00a0") is None
    other = nvlink_event(f"{X}149, NETIR_LINK_EVT Nonfatal XC 1 i 2 Link 01 [0x025001c6]")
    assert other is not None
    assert (other.severity, other.link, other.down_reason) == ("Nonfatal", 1, 0x25)


def test_the_register_words_of_an_xid_74_are_counted_from_one() -> None:
    e = only(
        f"[ 1.5] {X}74, pid=1, name=x, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x5, 0x0, 0x0, 0x0)"
    )
    found = link_registers(e.detail)
    assert found is not None
    assert (found.link, found.words) == (14, (0, 0, 0x10000, 5, 0, 0, 0))
    assert (found.bits(1), found.bits(3), found.bits(4), found.bits(8)) == (frozenset(), {16}, {0, 2}, frozenset())
    assert link_registers(f"{X}74, NVLink: fatal error detected on link 14") is None


def test_two_links_of_one_gpu_are_two_faults() -> None:
    lines = [f"[ 1.{n}] {X}74, NVLink: fatal error detected on link {n}(0x0, 0x0, 0x10000, 0x0)" for n in (3, 3, 4)]
    assert [e.count for e in read("\n".join(lines)).evidence] == [2, 1]


def test_a_log_that_grows_is_read_piece_by_piece_as_if_it_were_whole() -> None:
    pieces = [
        f"[ 5.0] NVRM: GPU at PCI:0000:1b:00: {UUID}\n[ 5.1] usb 1-1: new device\n",
        "[ 900.0] NVRM: The NVIDIA GPU 0000:29:00.0\n",
        "[ 900.1] NVRM: fallen off the bus and is not responding to commands.\n",
        f"[ 901.0] {X}31, Ch 1\n",
    ]
    growing = KernelLog(cluster="alpha", node="alpha2")
    parts = [growing.read(piece, seen_at=NOW, boot="boot-2") for piece in pieces]
    whole = read("".join(pieces))
    assert tuple(e for part in parts for e in part.evidence) == whole.evidence
    assert [part.lines for part in parts] == [2, 1, 1, 1]
    assert [e.gpu for e in whole.evidence] == ["0000:29:00", UUID]


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


def test_no_line_with_a_mark_is_lost_among_lines_of_every_kind() -> None:
    told = [prefix + line for prefix in PREFIXES[1:4] for line, _, _ in TEXTS]
    noise = [f"[ {n}.5] {chr(103 + n % 20)}{'x' * (n % 300)} says {n}" for n in range(9000)]
    mixed = [line for at, one in enumerate(told) for line in (*noise[at * 100 : at * 100 + 100], one)]
    apart = [KernelLog(cluster="alpha", node="alpha2").read(one, seen_at=NOW).evidence[0].code for one in told]
    together = KernelLog(cluster="alpha", node="alpha2")
    assert [e.code for line in mixed for e in together.read(line, seen_at=NOW).evidence] == apart
    assert set(apart) == {e.code for e in read("\n".join(mixed)).evidence}


def test_a_confirmed_reset_of_a_gpu_is_a_fact_and_only_its_own_program_may_say_so() -> None:
    done = "Jan  2 03:04:05 alpha2 nvsentinel-gpu-reset: GPU reset executed: GPU-455d8f70-2051-db6c, success: true"
    (e,) = read(done).evidence
    assert (e.kind, e.code, e.gpu) == (Kind.FACT, "gpu_reset", "GPU-455d8f70-2051-db6c")
    assert read(done.replace("success: true", "success: false")).evidence == ()
    assert read(done.replace("nvsentinel-gpu-reset", "myprogram")).evidence == ()
    assert read("kernel: [1645.5] GPU reset executed: GPU-455d8f70-2051-db6c").evidence[0].stamp == 1645.5

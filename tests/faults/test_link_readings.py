"""The register words of an XID 74: whose fault it is (NVIDIA's NVLink workflow for A100 and H100)."""

import pytest

from fleet.faults.evidence import Evidence, FaultClass
from tests.faults.making import GPU, TABLES, judge, kernel, xid


def words(*bits: tuple[int, int]) -> str:
    values = [0] * 7
    for word, bit in bits:
        values[word - 1] |= 1 << bit
    return ", ".join(f"{value:#x}" for value in values)


def line(*bits: tuple[int, int]) -> str:
    return f"74, pid=7, name=x, NVLink: fatal error detected on link 14({words(*bits)})"


OWN = (FaultClass.HARDWARE, GPU)
NOBODYS = (FaultClass.HARDWARE, None)
PASSES = (FaultClass.TRANSIENT, GPU)
RECORD = (FaultClass.INFORMATIONAL, GPU)


@pytest.mark.parametrize(
    ("bits", "times", "wanted", "rung"),
    [
        ([(1, 8)], 1, OWN, "person"),
        ([(1, 24)], 1, OWN, "person"),
        ([(1, 21)], 1, OWN, "person"),
        ([(1, 4)], 2, PASSES, "none"),
        ([(1, 4)], 3, OWN, "reset"),
        ([(1, 27)], 1, PASSES, "none"),
        ([(1, 27)], 2, OWN, "reset"),
        ([(3, 0)], 2, PASSES, "none"),
        ([(3, 0)], 3, OWN, "reset"),
        ([(3, 16)], 1, PASSES, "none"),
        ([(3, 16)], 2, OWN, "person"),
        ([(5, 18)], 2, PASSES, "none"),
        ([(5, 18)], 3, OWN, "reset"),
        ([(1, 1)], 1, NOBODYS, "person"),
        ([(1, 20)], 1, NOBODYS, "person"),
        ([(4, 16)], 1, NOBODYS, "person"),
        ([(4, 18)], 1, NOBODYS, "person"),
        ([(1, 0), (1, 30)], 5, RECORD, "none"),
        ([(5, 20)], 5, RECORD, "none"),
        ([(1, 1), (1, 4)], 1, OWN, "reset"),
        ([(1, 4), (1, 8)], 1, OWN, "person"),
        ([(1, 0), (1, 20)], 1, NOBODYS, "person"),
    ],
)
def test_a_bit_tells_whose_fault_the_link_is_and_from_which_time_on(
    bits: list[tuple[int, int]], times: int, wanted: tuple[FaultClass, str | None], rung: str
) -> None:
    now = kernel(line(*bits))
    before = [xid(74, ago=3600 * n, detail=line(*bits)) for n in range(1, times)]
    verdict = judge(*now, history=tuple(before))
    blamed = verdict.culprit.gpu if verdict.fault is FaultClass.HARDWARE else GPU
    assert (verdict.fault, blamed, verdict.rule, verdict.first_rung) == (*wanted, "xid:74", rung)
    if verdict.fault is FaultClass.HARDWARE:
        assert any(f"link 14: word {bits[0][0]} bit {bits[0][1]}" in note for note in verdict.companions)


@pytest.mark.parametrize(
    "other",
    [
        xid(74, ago=3600, detail=line((1, 4)).replace("link 14", "link 3")),
        xid(74, ago=3600, detail=line((3, 16))),
        xid(74, ago=3600, detail=line((1, 4)), gpu="0000:cd:00"),
        xid(74, ago=25 * 3600, detail=line((1, 4))),
        xid(74, ago=33, detail=line((1, 4))),
    ],
    ids=["another link", "another bit", "another GPU", "the day before", "the same moment"],
)
def test_what_is_no_other_error_of_that_link_does_not_count(other: Evidence) -> None:
    mine = (xid(74, detail=line((1, 4))), xid(74, ago=7200, detail=line((1, 4))))
    assert judge(mine[0], history=(mine[1], other)).fault is FaultClass.TRANSIENT


EVENT = "{}, {} {}  XC0 i0 Link 08 ({})"


@pytest.mark.parametrize(
    ("code", "unit", "words", "fault", "rung"),
    [
        (144, "SAW_MVB", "0x1 0x2", FaultClass.HARDWARE, "reset"),
        (144, "SAW_MVB", "0x1 0x20", FaultClass.INFORMATIONAL, "none"),
        (144, "SAW_MVB", "0x1 0x22", FaultClass.HARDWARE, "reset"),
        (145, "RLW_REMAP", "0x4 0x10", FaultClass.TRANSIENT, "none"),
        (145, "RLW_REMAP", "0x82 0x40", FaultClass.HARDWARE, "reset"),
        (145, "RLW_SRC_TRACK", "0x7 0x8", FaultClass.TRANSIENT, "none"),
        (145, "RLW_SRC_TRACK", "0x7 0x10", FaultClass.HARDWARE, "reset"),
        (145, "RLW_RXPIPE", "0x6 0x1", FaultClass.INFORMATIONAL, "none"),
        (145, "RLW_RXPIPE", "0x86 0x1", FaultClass.HARDWARE, "reset"),
        (145, "RLW_RXPIPE", "0x000000c2 0x1", FaultClass.INFORMATIONAL, "none"),
        (145, "RLW_RXPIPE", "0x000004c2 0x1", FaultClass.HARDWARE, "reset"),
        (145, "RLW_RXPIPE", "0x86 0x8", FaultClass.INFORMATIONAL, "none"),
        (145, "RLW_CTRL", "0x3 0x80000000", FaultClass.INFORMATIONAL, "none"),
        (146, "TLW_RX/TLW_RX_PIPE1", "0xb 0x4", FaultClass.HARDWARE, "reset"),
        (146, "TLW_TX", "0xc 0x1", FaultClass.INFORMATIONAL, "none"),
        (147, "TREX", "0xe 0x1", FaultClass.INFORMATIONAL, "none"),
        (148, "NVLPW_CTRL/NVLPW", "0xf 0x80000000", FaultClass.INFORMATIONAL, "none"),
        (149, "NETIR/NETIR_INT", "0x18 0x0", FaultClass.HARDWARE, "reset"),
        (149, "NETIR_BER_EVENT", "0x13 0x2", FaultClass.INFORMATIONAL, "none"),
        (149, "NETIR_MFDE_EVENT", "0x14 0x5", FaultClass.HARDWARE, "reset"),
        (149, "NETIR_MFDE_EVENT", "0x14 0x3", FaultClass.INFORMATIONAL, "none"),
        (149, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "0x02500011 0x0", FaultClass.HARDWARE, "person"),
        (150, "MSE_WATCHDOG", "0x0 0x0", FaultClass.HARDWARE, "reset"),
        (145, "RLW_NOVEL", "0x1 0x1", FaultClass.HARDWARE, "reset"),
        (149, "NETIR_MFDE_EVENT", "0x14 0x2", FaultClass.HARDWARE, "reset"),
        (145, "RLW_REMAP", "0x4", FaultClass.HARDWARE, "reset"),
    ],
)
def test_the_unit_and_its_status_tell_what_an_nvlink_5_line_means_whatever_it_calls_itself(
    code: int, unit: str, words: str, fault: FaultClass, rung: str
) -> None:
    for severity in ("Fatal", "Nonfatal"):
        verdict = judge(*kernel(EVENT.format(code, unit, severity, words)))
        assert (verdict.fault, verdict.rule, verdict.first_rung) == (fault, f"xid:{code}", rung)


def test_packets_that_were_lost_want_what_the_driver_asks_for() -> None:
    lost = EVENT.format(145, "RLW_REMAP", "Nonfatal", "0x4 0x10")
    wish = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"
    verdict = judge(*kernel(lost, wish))
    assert (verdict.fault, verdict.rule, verdict.first_rung) == (FaultClass.HARDWARE, "recovery:1", "reset")


def test_a_link_that_goes_down_twice_a_day_without_a_reason_is_reported() -> None:
    down = EVENT.format(149, "NETIR_LINK_EVT", "Fatal", "0x00100011 0x0")
    assert judge(*kernel(down)).first_rung == "reset"
    assert judge(*kernel(down), history=(xid(149, ago=7200, detail=down),)).first_rung == "person"


@pytest.mark.parametrize("text", ["74, NVLink: fatal error detected on link 14", line(), line((2, 3)), line((1, 31))])
def test_words_that_say_nothing_known_leave_the_row_as_it_is(text: str) -> None:
    verdict = judge(*kernel(text))
    row = TABLES.xid[74]
    assert (verdict.fault, verdict.first_rung, verdict.culprit.gpu) == (row.fault, row.first_rung, GPU)


def test_the_gpu_that_died_is_blamed_and_not_the_one_that_tells_of_it() -> None:
    told = kernel(line((1, 20)))
    lost = kernel("79, GPU has fallen off the bus.")
    dead = lost[0].model_copy(update={"gpu": "0000:cd:00", "pci": "0000:cd:00"})
    verdict = judge(*told, dead)
    assert (verdict.rule, verdict.culprit.gpu, verdict.first_rung) == ("xid:79", "0000:cd:00", "reboot")


def test_a_cut_line_is_judged_by_the_words_that_it_has() -> None:
    assert judge(*kernel("74, NVLink: fatal error detected on link 3(0x100, 0x0)")).first_rung == "person"

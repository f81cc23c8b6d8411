"""The register words of an XID 74: whose fault it is (NVIDIA's NVLink workflow for A100 and H100)."""

import pytest

from fleet.faults.evidence import FaultClass
from tests.faults.making import GPU, TABLES, judge, kernel


def words(*bits: tuple[int, int]) -> str:
    values = [0] * 7
    for word, bit in bits:
        values[word - 1] |= 1 << bit
    return ", ".join(f"{value:#x}" for value in values)


def line(*bits: tuple[int, int]) -> str:
    return f"74, pid=7, name=x, NVLink: fatal error detected on link 14({words(*bits)})"


OWN = (FaultClass.HARDWARE, GPU)
NOBODYS = (FaultClass.HARDWARE, None)


@pytest.mark.parametrize(
    ("bits", "wanted", "rung"),
    [
        ([(1, 8)], OWN, "person"),
        ([(1, 24)], OWN, "person"),
        ([(1, 21)], OWN, "person"),
        ([(1, 4)], OWN, "reset"),
        ([(1, 27)], OWN, "reset"),
        ([(3, 0)], OWN, "reset"),
        ([(3, 16)], OWN, "reset"),
        ([(5, 18)], OWN, "reset"),
        ([(1, 1)], NOBODYS, "person"),
        ([(1, 20)], NOBODYS, "person"),
        ([(4, 16)], NOBODYS, "person"),
        ([(4, 18)], NOBODYS, "person"),
        ([(1, 0), (1, 30)], (FaultClass.INFORMATIONAL, GPU), "none"),
        ([(5, 20)], (FaultClass.INFORMATIONAL, GPU), "none"),
        ([(1, 1), (1, 4)], OWN, "reset"),
        ([(1, 4), (1, 8)], OWN, "person"),
        ([(1, 0), (1, 20)], NOBODYS, "person"),
    ],
)
def test_a_bit_tells_whose_fault_the_link_is(
    bits: list[tuple[int, int]], wanted: tuple[FaultClass, str | None], rung: str
) -> None:
    verdict = judge(*kernel(line(*bits)))
    assert (verdict.fault, verdict.culprit.gpu if verdict.fault is FaultClass.HARDWARE else GPU) == wanted
    assert (verdict.rule, verdict.first_rung) == ("xid:74", rung)
    if verdict.fault is FaultClass.HARDWARE:
        assert any(f"link 14: word {bits[0][0]} bit {bits[0][1]}" in note for note in verdict.companions)


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

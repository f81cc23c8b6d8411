"""NVML's words about GPUs become evidence: lost ones, bad fields, a driver that hangs or is gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.gpus import GONE_TIMES, Gpus
from agents.nvml_watch import Gone, Heard, Hung
from agents.nvml_words import GpuRead, Listed, Start, Swept, XidEvent
from agents.spool import Spool
from fleet.faults.classify import classify
from fleet.faults.evidence import Evidence, FaultClass, Kind
from fleet.faults.repeats import BURST_GAP
from fleet.faults.tables import load_tables
from tests.agents.driver import pci, uuid

NOW = 1_800_000_000.0


class Stage:
    """A node's GPUs over restarts of the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lists = 0
        self.tick = 0.0
        self.restart("boot-1")

    def restart(self, boot: str) -> None:
        if hasattr(self, "spool"):
            self.spool.add(memo=self.gpus.memo())
            self.spool.close()
        self.spool = Spool(self.folder, boot)
        self.gpus = Gpus("alpha", "a1", self.spool, boot, self.list_again)

    def list_again(self) -> None:
        self.lists += 1

    def hear(self, *heard: Heard) -> list[Evidence]:
        self.tick += 30
        return [piece for one in heard for piece in self.gpus.heard(one, self.tick, NOW + self.tick)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    yield found
    found.spool.close()


def start(*indices: int, nameless: tuple[int, ...] = ()) -> Start:
    gpus = [Listed(index=i, uuid=uuid(i), pci=f"0000{pci(i).upper()}.0") for i in indices]
    return Start(type="start", driver="580", gpus=(*gpus, *(Listed(index=i) for i in nameless)))


def read(index: int, links: int = 18, **fields: float) -> GpuRead:
    return GpuRead(
        type="gpu",
        index=index,
        uuid=uuid(index),
        pci=f"0000{pci(index).upper()}.0",
        fields=fields,
        links=tuple(range(links)),
    )


def lost(index: int, *, named: bool = True) -> GpuRead:
    return GpuRead(type="gpu", index=index, uuid=uuid(index) if named else None, lost="GPU is lost")


def hung(times: int, *, stuck: bool = False) -> Hung:
    return Hung(120.0, "GPU 2", times, stuck)


def judged(piece: Evidence) -> FaultClass:
    return classify([piece], tables=load_tables(), now=NOW).fault


def test_a_recovery_action_is_told_with_uuid_address_and_value(stage: Stage) -> None:
    (piece,) = stage.hear(start(0, 1), read(1, recovery_action=2))

    assert (piece.kind, piece.code, piece.value) == (Kind.GPU_FIELD, "recovery_action", 2)
    assert (piece.gpu, piece.pci, piece.node) == (uuid(1), pci(1), "a1")
    verdict = classify([piece], tables=load_tables(), now=NOW)
    assert (verdict.fault, verdict.first_rung, verdict.culprit.gpu) == (FaultClass.HARDWARE, "reboot", uuid(1))


def test_a_gpu_that_is_silent_twice_is_lost_once(stage: Stage) -> None:
    assert stage.hear(start(0, 1), read(0), read(1), lost(1)) == []
    (piece,) = stage.hear(lost(1))

    assert (piece.kind, piece.gpu, piece.pci) == (Kind.GPU_LOST, uuid(1), pci(1))
    assert judged(piece) is FaultClass.HARDWARE
    assert stage.hear(lost(1), lost(1)) == []


def test_a_lost_gpu_is_not_told_again_by_the_next_process(stage: Stage) -> None:
    stage.hear(start(0, 1), lost(1), lost(1))
    stage.restart("boot-1")

    assert stage.hear(start(0, nameless=(1,)), lost(1, named=False), lost(1, named=False)) == []


def test_a_gpu_that_answers_again_and_is_lost_again_is_told_again(stage: Stage) -> None:
    stage.hear(start(0, 1), lost(1), lost(1))

    assert [p.kind for p in stage.hear(read(1), lost(1), lost(1))] == [Kind.GPU_LOST]


def test_a_gpu_that_was_lost_before_the_list_was_made_is_named_from_memory(stage: Stage) -> None:
    stage.hear(start(0, 1), read(0), read(1))

    (piece,) = stage.hear(start(0, nameless=(1,)), read(0), lost(1, named=False), lost(1, named=False))

    assert piece.gpu == uuid(1)


def test_a_gpu_that_the_driver_lists_no_more_is_lost_after_a_second_look(stage: Stage) -> None:
    stage.hear(start(0, 1), read(0), read(1))

    assert stage.hear(start(0)) == []
    assert stage.lists == 1
    (piece,) = stage.hear(start(0))
    assert (piece.kind, piece.gpu) == (Kind.GPU_LOST, uuid(1))
    assert stage.hear(start(0), read(0)) == []


def test_another_boot_starts_with_no_memory_of_gpus(stage: Stage) -> None:
    stage.hear(start(0, 1), read(0), read(1))
    stage.restart("boot-2")

    assert stage.hear(start(0), start(0)) == []


def test_links_that_were_up_and_are_not_are_told(stage: Stage) -> None:
    stage.hear(start(0), read(0, links=18))

    assert stage.hear(read(0, links=16)) == []
    (piece,) = stage.hear(read(0, links=16))
    assert (piece.code, piece.value) == ("nvlink_inactive", 2)


def test_a_gpu_that_never_had_links_has_none_to_lose(stage: Stage) -> None:
    assert stage.hear(start(0), read(0, links=0), read(0, links=0), read(0, links=0)) == []


def test_a_driver_that_hangs_twice_is_recorded_once_and_moves_no_job(stage: Stage) -> None:
    assert stage.hear(start(0), hung(1)) == []
    (piece,) = stage.hear(start(0), hung(2))

    assert (piece.code, judged(piece)) == ("driver_hung", FaultClass.INFORMATIONAL)
    assert stage.hear(start(0), hung(3)) == []
    assert stage.hear(Swept(type="swept"), hung(1)) == []
    assert [p.code for p in stage.hear(hung(2))] == ["driver_hung"]


def test_a_call_that_cannot_even_be_ended_is_told_at_once(stage: Stage) -> None:
    (piece,) = stage.hear(start(0), hung(1, stuck=True))

    assert piece.code == "driver_hung"


def test_a_driver_that_is_gone_is_recorded_and_moves_no_job(stage: Stage) -> None:
    stage.hear(start(0), read(0))
    told = [stage.hear(Gone("Driver Not Loaded", times)) for times in range(1, GONE_TIMES + 5)]

    assert [len(pieces) for pieces in told] == [0] * (GONE_TIMES - 1) + [1] + [0] * 4
    assert judged(told[GONE_TIMES - 1][0]) is FaultClass.INFORMATIONAL


def test_a_node_without_gpus_tells_nothing(stage: Stage) -> None:
    assert stage.hear(*(Gone("NVML Shared Library Not Found", times) for times in range(1, 20))) == []


def test_an_event_without_its_line_is_an_xid_of_that_gpu(stage: Stage) -> None:
    (piece,) = stage.gpus.xid(XidEvent(type="xid", uuid=uuid(4), pci=f"0000{pci(4)}.0", code=95), 0.0, NOW)

    assert (piece.kind, piece.code, piece.gpu, piece.pci) == (Kind.XID, "95", uuid(4), pci(4))
    assert judged(piece) is FaultClass.HARDWARE


def test_a_flood_of_one_event_is_told_once_and_its_return_again(stage: Stage) -> None:
    event = XidEvent(type="xid", uuid=uuid(4), pci=pci(4), code=69)
    told = [stage.gpus.xid(event, float(second), NOW + second) for second in range(0, 600, 10)]

    assert [len(pieces) for pieces in told] == [1] + [0] * 59
    assert len(stage.gpus.xid(event, 590.0 + BURST_GAP + 1, NOW)) == 1

"""Asks NVIDIA's driver about the GPUs and prints what it says, one JSON line a message. The agent runs it as a child.

A process of its own, for a call into a sick driver may never return, may take the process with it, or may go on with
a library that no longer fits: the agent ends it and starts a new one. It judges nothing and only reads.

Messages: `start` with the GPUs, `gpu` for each GPU in each round, `swept` after a round, `xid` at once, and `off`,
the last one, when the driver cannot be asked. Needs the extra `node` (nvidia-ml-py) and the driver's own library.
"""

import argparse
import ctypes
import json
import sys
import time
from typing import Any, NoReturn

LINKS = 18
"""NVLinks of a GPU at most (NVML_NVLINK_MAX_LINKS)."""
IDLE = 1
"""Bit of the clocks' event reasons: nothing runs (nvmlClocksEventReasonGpuIdle)."""
CLOCK_BITS = {"clocks_hw_slowdown": 0x8, "clocks_hw_thermal": 0x40, "clocks_power_brake": 0x80}
"""Bits of the clocks' event reasons that are faults of the machine; the others are settings and plain limits."""
NVLINK_ERRORS = (
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)
FIELDS = {
    "recovery_action": ("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",),
    "ecc_correctable": ("NVML_FI_DEV_ECC_SBE_VOL_TOTAL",),
    "ecc_uncorrectable": ("NVML_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "row_remap_uncorrectable": ("NVML_FI_DEV_REMAPPED_UNC",),
    "row_remap_pending": ("NVML_FI_DEV_REMAPPED_PENDING",),
    "row_remap_failed": ("NVML_FI_DEV_REMAPPED_FAILURE",),
    "page_retired_pending": ("NVML_FI_DEV_RETIRED_PENDING",),
    "page_retired_dbe": ("NVML_FI_DEV_RETIRED_DBE",),
    "pcie_replays": ("NVML_FI_DEV_PCIE_REPLAY_COUNTER",),
    "nvlink_errors": NVLINK_ERRORS,
}
"""Row of the catalogue's `gpu_fields.csv` -> NVML fields whose sum it is. One call reads them all."""
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Type of a field's value -> member of its union (nvmlValueType_t)."""


class DriverGoneError(Exception):
    """Nothing can be asked any more; the text says why."""


class Card:
    """One GPU as the driver lists it. `uuid` and `pci` stay as they were when it answered last."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.uuid: str | None = None
        self.pci: str | None = None


def main(argv: list[str] | None = None) -> int:
    """Rounds until the driver goes away or nobody reads any more."""
    parser = argparse.ArgumentParser(prog="agents.nvml_child", description="reads a node's GPUs")
    parser.add_argument("--every", type=float, required=True, help="seconds between two rounds")
    every = parser.parse_args(argv).every
    try:
        import pynvml
    except ImportError:
        tell("off", why="pynvml is missing: install gpu-runbooks[node] on the node")
        return 1
    try:
        pynvml.nvmlInit()
        watch(pynvml, every)
    except (DriverGoneError, pynvml.NVMLError) as error:
        tell("off", why=str(error))
        return 1
    except BrokenPipeError:
        return 0


def tell(kind: str, **words: object) -> None:
    """One message to the agent. Raises BrokenPipeError when it is gone."""
    sys.stdout.write(json.dumps({"type": kind, **words}) + "\n")
    sys.stdout.flush()


def watch(nvml: Any, every: float) -> NoReturn:
    """Rounds and events for ever. Raises NVMLError or DriverGoneError when the whole driver is gone."""
    cards = [Card(index) for index in range(nvml.nvmlDeviceGetCount())]
    for card in cards:
        try_to_name(nvml, card)
    listed = [{"index": c.index, "uuid": c.uuid, "pci": c.pci} for c in cards]
    tell("start", driver=_text(nvml.nvmlSystemGetDriverVersion()), gpus=listed)
    events = listen(nvml, cards)
    while True:
        due = time.monotonic() + every
        for card in cards:
            sweep(nvml, card)
        tell("swept")
        wait(nvml, events, cards, due)


def try_to_name(nvml: Any, card: Card) -> Exception | None:
    """Handle, uuid and address of the GPU; the error when it does not answer."""
    try:
        card.handle = nvml.nvmlDeviceGetHandleByIndex(card.index)
        card.uuid = _text(nvml.nvmlDeviceGetUUID(card.handle))
        card.pci = _text(nvml.nvmlDeviceGetPciInfo(card.handle).busId)
    except nvml.NVMLError as error:
        _raise_if_gone(nvml, error)
        card.handle = None
        return Exception(str(error))
    return None


def sweep(nvml: Any, card: Card) -> None:
    """Everything of one GPU in one message."""
    words: dict[str, object] = {"index": card.index, "uuid": card.uuid, "pci": card.pci}
    error = try_to_name(nvml, card) if card.handle is None else None
    if error is not None:
        tell("gpu", **words, lost=str(error))
        return
    look = Look(nvml, card.handle)
    try:
        look.all()
    except nvml.NVMLError as lost:
        card.handle = None
        tell("gpu", **words, lost=str(lost))
        return
    words |= {"uuid": card.uuid, "pci": card.pci}
    tell("gpu", **words, fields=look.fields, links=look.links, errors=look.errors)


class Look:
    """One reading of one GPU. A call that it does not support is left out; another error is told by its name."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.fields: dict[str, float] = {}
        self.links: list[int] | None = None
        """NVLinks that are up; None when they could not be asked."""
        self.errors: dict[str, str] = {}
        self.needs_reset = False

    def all(self) -> None:
        """Reads. Raises NVMLError when the GPU is lost, DriverGoneError when the driver is."""
        self._values()
        if self.needs_reset:
            return  # nothing else can be asked
        self._clocks_and_pcie()
        self._sram()
        links = [link for link in range(LINKS) if self._ask("nvmlDeviceGetNvLinkState", link)]
        self.links = None if self.needs_reset else links

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer; None for what the GPU or the driver does not have."""
        try:
            return getattr(self.nvml, name)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            self._sort(name, error)
            return None

    def _sort(self, name: str, error: Any) -> None:
        nvml = self.nvml
        _raise_if_gone(nvml, error)
        if error.value in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND}:
            raise error
        if error.value == nvml.NVML_ERROR_RESET_REQUIRED:
            self.needs_reset = True
            self.fields["recovery_action"] = max(1.0, self.fields.get("recovery_action", 0.0))
        elif error.value not in {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
        }:
            self.errors[name] = str(error)

    def _values(self) -> None:
        nvml = self.nvml
        asked = [(name, getattr(nvml, field)) for name, fields in FIELDS.items() for field in fields]
        answers = self._ask("nvmlDeviceGetFieldValues", [field for _, field in asked]) or ()
        for (name, _), answer in zip(asked, answers, strict=False):
            if answer.nvmlReturn != nvml.NVML_SUCCESS:
                self._sort(name, nvml.NVMLError(answer.nvmlReturn))
            elif member := _MEMBERS.get(answer.valueType):
                self.fields[name] = self.fields.get(name, 0.0) + float(getattr(answer.value, member))

    def _clocks_and_pcie(self) -> None:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # a driver before R535 has it under its old name only
            self.errors.pop("nvmlDeviceGetCurrentClocksEventReasons", None)
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            self.fields |= {name: float(reasons & bit) for name, bit in CLOCK_BITS.items()}
        width, widest = self._ask("nvmlDeviceGetCurrPcieLinkWidth"), self._ask("nvmlDeviceGetMaxPcieLinkWidth")
        if width and widest:
            self.fields["pcie_width_lost"] = float(max(0, widest - width))
        working = reasons is not None and not reasons & IDLE and self._ask("nvmlDeviceGetPerformanceState") == 0
        if working:  # at idle a lower generation saves power and says nothing
            now = self._ask("nvmlDeviceGetCurrPcieLinkGeneration")
            most = self._ask("nvmlDeviceGetMaxPcieLinkGeneration")
            if now and most:
                self.fields["pcie_generation_lost"] = float(max(0, most - now))

    def _sram(self) -> None:
        status = self.nvml.c_nvmlEccSramErrorStatus_v1_t()
        if self._ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status)) is not None:
            self.fields["sram_threshold"] = float(status.bThresholdExceeded)


def listen(nvml: Any, cards: list[Card]) -> Any:
    """A set of XID events of all GPUs that have them; None when none has."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError as error:
        _raise_if_gone(nvml, error)
        return None
    heard = False
    for card in cards:
        if card.handle is None:
            continue
        try:
            if nvml.nvmlDeviceGetSupportedEventTypes(card.handle) & nvml.nvmlEventTypeXidCriticalError:
                nvml.nvmlDeviceRegisterEvents(card.handle, nvml.nvmlEventTypeXidCriticalError, events)
                heard = True
        except nvml.NVMLError as error:
            _raise_if_gone(nvml, error)
    return events if heard else None


def wait(nvml: Any, events: Any, cards: list[Card], due: float) -> None:
    """Tells XIDs as they come until the next round is due."""
    while (left := due - time.monotonic()) > 0:
        if events is None:
            time.sleep(left)
            return
        try:
            event = nvml.nvmlEventSetWait_v2(events, max(1, int(left * 1000)))
        except nvml.NVMLError as error:
            _raise_if_gone(nvml, error)
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                time.sleep(min(1.0, left))  # a lost GPU makes the wait fail at once: the next round names it
            continue
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            tell_xid(cards, event)


def tell_xid(cards: list[Card], event: Any) -> None:
    """The GPU of an event is known by its handle."""
    card = next((c for c in cards if c.handle is not None and _same(c.handle, event.device)), None)
    whole = event.gpuInstanceId in {0xFFFFFFFF, None}
    tell(
        "xid",
        uuid=card.uuid if card else None,
        pci=card.pci if card else None,
        code=int(event.eventData),
        instance=None if whole else int(event.gpuInstanceId),
    )


def _same(one: Any, other: Any) -> bool:
    first, second = (ctypes.cast(handle, ctypes.c_void_p).value for handle in (one, other))
    return first == second


def _raise_if_gone(nvml: Any, error: Any) -> None:
    """Raises DriverGoneError for an error that is about the whole driver."""
    if error.value in {
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }:
        raise DriverGoneError(str(error)) from error


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


if __name__ == "__main__":
    sys.exit(main())

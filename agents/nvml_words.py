"""What the child that asks NVML tells the agent, as values."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fleet.model import Value


class Listed(Value):
    """A GPU as the driver lists it; without uuid when it did not answer."""

    index: int
    uuid: str | None = None
    pci: str | None = None


class Start(Value):
    """The driver answers; these are its GPUs."""

    type: Literal["start"]
    driver: str
    gpus: tuple[Listed, ...] = ()


class GpuRead(Value):
    """One GPU in one round."""

    type: Literal["gpu"]
    index: int
    uuid: str | None = None
    pci: str | None = None
    lost: str | None = None
    """The driver's words when the GPU does not answer."""
    fields: Mapping[str, float] = {}
    """Row of `gpu_fields.csv` -> number."""
    links: tuple[int, ...] | None = None
    """NVLinks that are up; None when they could not be asked."""
    errors: Mapping[str, str] = {}
    """Call -> the driver's words, where a call failed that should not."""


class Swept(Value):
    """A round is over."""

    type: Literal["swept"]


class XidEvent(Value):
    """An XID as NVML tells it: the number and no text."""

    type: Literal["xid"]
    uuid: str | None = None
    pci: str | None = None
    code: int
    instance: int | None = None
    """MIG instance, where the event names one."""


class Off(Value):
    """The driver cannot be asked; the child ends."""

    type: Literal["off"]
    why: str


Message = Start | GpuRead | Swept | XidEvent | Off
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def read_message(line: bytes) -> Message | None:
    """None for a line that is no message: a library of the driver may print to the same stream."""
    try:
        return _MESSAGE.validate_json(line)
    except ValidationError:
        return None

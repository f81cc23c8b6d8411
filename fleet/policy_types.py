"""What the models of `fleet.yaml` are made of: a strict value, and words with units."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fleet import policy_words as words
from fleet.units import (
    duration_text,
    parse_duration,
    parse_percent,
    parse_rate,
    parse_size,
    percent_text,
    rate_text,
    size_text,
)

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, return_type=str),
]
"""Seconds, written `90s`, `15m`, `2h` or `1d`."""
Percent = Annotated[float, BeforeValidator(parse_percent), PlainSerializer(percent_text, return_type=str)]
"""0 to 100, written `"10%"`."""
Size = Annotated[float, BeforeValidator(parse_size), PlainSerializer(size_text, return_type=str)]
"""Bytes, written `500MB`, `20GB`, `1TB`."""
Rate = Annotated[float, BeforeValidator(parse_rate), PlainSerializer(rate_text, return_type=str)]
"""Bytes a second, written `500kB/s`, `500MB/s` or `2GB/s`."""
Argv = Annotated[tuple[str, ...], AfterValidator(words.argv)]
"""A program and its arguments; no shell is involved."""
PowerArgv = Annotated[tuple[str, ...], AfterValidator(words.power_argv)]
CheckArgv = Annotated[tuple[str, ...], AfterValidator(words.check_argv)]
AbsolutePath = Annotated[str, AfterValidator(words.absolute_path)]
Tries = Annotated[int, Field(ge=0, le=10)]


class Strict(BaseModel):
    """A frozen value that refuses unknown keys and never turns one type into another."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, serialize_by_alias=True
    )

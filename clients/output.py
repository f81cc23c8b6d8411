"""What `runbook` prints: data to standard output, everything else to standard error.

`-o json` keys are a promise (golden tests); tables are for people and may change. Text from outside is freed of
control characters first, so a log line cannot move the terminal.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Format = Literal["table", "json", "name"]
Color = Literal["auto", "always", "never"]

PLAIN_WIDTH = 400
"""Columns where no terminal is: long texts must not be cut for `grep`."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def clean(text: object) -> str:
    """One line without control characters or text direction marks."""
    return _CONTROL.sub(" ", str(text)).strip()


def wants_color(color: Color, stream: TextIO) -> bool:
    """`--color` over NO_COLOR (set and not empty) over FORCE_COLOR over a terminal that is not dumb."""
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


class Screen:
    """Where one command prints."""

    def __init__(self, form: Format = "table", color: Color = "auto") -> None:
        self.form: Format = form
        self.out = _console(sys.stdout, color)
        self.err = _console(sys.stderr, color)
        self.detached = False
        """A person was told that what was followed goes on."""

    @property
    def live(self) -> bool:
        """A page that moves makes sense: a real terminal, whatever FORCE_COLOR says."""
        return self.form == "table" and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"

    def note(self, text: str) -> None:
        """For a person, beside the data."""
        self.err.print(clean(text), soft_wrap=True)

    def line(self, text: str) -> None:
        """One line of data."""
        self.out.print(clean(text), soft_wrap=True)

    def show(self, thing: "RenderableType") -> None:
        """A table or a page."""
        self.out.print(thing)

    def data(self, value: object) -> None:
        """JSON of a value, or of a list of values."""
        sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")

    def answer(self, value: object, *, name: str, text: str) -> None:
        """What a write did: the value as JSON, only the name, or a sentence."""
        if self.form == "json":
            self.data(value)
        else:
            self.line(name if self.form == "name" else text)

    def one(self, value: object, *, name: str, page: "RenderableType") -> None:
        """What a read found of one thing."""
        if self.form == "json":
            self.data(value)
        elif self.form == "name":
            self.line(name)
        else:
            self.show(page)

    def rows(self, values: Sequence[object], names: Iterable[str], table: "RenderableType", *, empty: str) -> None:
        """What a read found: JSON, names, or a table. Nothing found is no error; it is said beside the data."""
        if self.form == "json":
            self.data(list(values))
        elif self.form == "name":
            for name in names:
                self.line(name)
        elif values:
            self.show(table)
        if not values:
            self.note(empty)


def _console(stream: TextIO, color: Color) -> "Console":
    from rich.console import Console

    colored = wants_color(color, stream)
    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal or colored,
        color_system=("auto" if terminal else "256") if colored else None,
        no_color=not colored,
        width=None if terminal else PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _plain(value: object) -> Any:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value

"""Names that come from a store or from inside a file: which are taken, and how the rest is told."""

import re

MAX_PATH = 1024
"""Characters of a path relative to its root; longer ones are refused (object stores end at 1,024 bytes)."""
_DIGITS = re.compile(r"\d{1,19}")


def trouble(path: str) -> str:
    """Why a relative path is refused; empty for a good one.

    Good: not empty, not absolute, no `.` or `..` or empty part, no backslash, printable, not too long. Surrogates of
    names that are no UTF-8 are not printable.
    """
    if not path or path.startswith("/") or "\\" in path:
        return "is no relative path"
    if any(part in {"", ".", ".."} for part in path.split("/")):
        return "holds `.`, `..` or an empty part"
    if not path.isprintable():
        return "holds a line break, a control character or bytes that are no UTF-8"
    if len(path) > MAX_PATH:
        return f"is longer than {MAX_PATH} characters"
    return ""


def shown(name: object, limit: int = 120) -> str:
    """Any name in one printable line of at most `limit` characters, escapes for what is not printable."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(name)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def joined(folder: str, name: str) -> str:
    """Path of `name` in `folder`; the root's own folder is empty."""
    return f"{folder}/{name}" if folder else name


def told(folder: str, name: object) -> str | None:
    """Path of a file that another file names, relative to `folder`; None when the name leads anywhere else."""
    if not isinstance(name, str) or trouble(name):
        return None
    return joined(folder, name)


def number(text: str) -> int | None:
    """A tracker's whole text as a number, white space around it allowed; None for anything else."""
    stripped = text.strip()
    return int(stripped) if _DIGITS.fullmatch(stripped) and stripped.isascii() else None

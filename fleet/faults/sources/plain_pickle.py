"""A pickle of plain data as plain data: what PyTorch's own writer makes for a dump, and nothing of it is executed.

The machine is the one that judges checkpoints (`fleet/checkpoints/pickles.py`). The functions that PyTorch names
around lists and dictionaries (`torch/csrc/jit/serialization/pickler.cpp`) stand for the data that they are given.
"""

from typing import Any

from fleet.checkpoints.pickles import Name, Pairs, PickleError, Record, read_pickle
from fleet.errors import InvalidInputError

MAX_DEPTH = 40
"""Parts within parts; a dump's shape needs 5."""

_TORCH = "torch.jit._pickle"
_STAND_FOR_DATA = {Name(_TORCH, name) for name in ("restore_type_tag", "build_intlist", "build_doublelist")}
_STAND_FOR_DATA |= {Name(_TORCH, "build_boollist")}


def load_plain(data: bytes) -> Any:
    """Lists, tuples, dictionaries with texts and numbers as keys, texts, numbers. Parts may be shared: whoever walks
    through it bounds the walk.

    Raises InvalidInputError for a pickle that is broken, too large, too deep, or that asks for anything else.
    """
    try:
        found = read_pickle(data, _STAND_FOR_DATA.__contains__)
    except PickleError as error:
        raise InvalidInputError(f"the pickle is refused, nothing of it ran: {error}") from error
    return _plain(found, {}, 0)


def _plain(value: Any, done: dict[int, Any], depth: int) -> Any:
    """`done`: identity of a part -> what became of it, so that a shared part costs its size once."""
    if not isinstance(value, Pairs | Record | list | tuple):
        return value
    if id(value) in done:
        return done[id(value)]
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"the pickle is nested deeper than {MAX_DEPTH} parts, or holds itself")
    if isinstance(value, Pairs):
        keys = [key for key, _ in value.pairs]
        if not all(isinstance(key, str | int | float | None) for key in keys):
            raise InvalidInputError("the pickle has a key that is no plain value")
        made: Any = {key: _plain(item, done, depth + 1) for key, item in value.pairs}
    elif isinstance(value, Record):
        if not value.args or value.state is not None or value.members or value.items.pairs:
            raise InvalidInputError("the pickle fills what is no plain data")
        made = _plain(value.args[0], done, depth + 1)
    else:
        made = type(value)(_plain(item, done, depth + 1) for item in value)
    done[id(value)] = made
    return made

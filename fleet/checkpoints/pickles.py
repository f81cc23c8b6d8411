"""Reads pickles without executing any: opcodes of an allow-list, names of an allow-list, inert records.

Nothing is imported and nothing is called. Dictionaries stay lists of pairs, so that no key is ever hashed: a small
pickle can hold a tuple whose hash takes years. Memory is bounded by the pickle's length, for an opcode adds one
reference at most; the memo is a dictionary, for an index may be 4 billion.
"""

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet.checkpoints.names import shown

MAX_OPS = 30_000_000
"""Opcodes of one pickle; the metadata of a checkpoint with a million pieces has about 20 million."""


class PickleError(Exception):
    """The bytes are no pickle of the kind that is read here; the text says why."""


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle names. It is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Pairs:
    """A dictionary, in the order of its making."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Value of the last pair with this text as its key; None without one."""
        return next((v for k, v in reversed(self.pairs) if type(k) is str and k == key), None)


@dataclass(slots=True, eq=False)
class Bag:
    """A set, never hashed."""

    items: list[Any]


@dataclass(slots=True, eq=False)
class Record:
    """What a call would have made: the name, its arguments, the state that was set, the items that were added."""

    name: Name
    args: tuple[Any, ...] = ()
    state: Any = None
    items: Pairs = field(default_factory=Pairs)
    members: list[Any] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """A field of its state, or an item."""
        state = self.state[1] if isinstance(self.state, tuple) and len(self.state) == 2 else self.state
        found = self.state.get(key) if isinstance(self.state, Pairs) else None
        if found is None and isinstance(state, Pairs):
            found = state.get(key)
        return self.items.get(key) if found is None else found


@dataclass(slots=True, eq=False)
class Persistent:
    """A tensor's storage, which lies elsewhere."""

    key: Any


_MARK = object()


def read_pickle(data: bytes, allowed: Callable[[Name], bool]) -> Any:
    """The value as plain values, lists, tuples, `Pairs`, `Bag` and `Record`.

    Raises PickleError for a broken pickle, an opcode that is not read here, a name that `allowed` refuses, or
    more than MAX_OPS opcodes.
    """
    machine = _Machine(allowed)
    try:
        for count, (op, arg, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPS:
                raise PickleError(f"it has more than {MAX_OPS} opcodes")
            if op.name == "STOP":
                return machine.pop()
            machine.step(op.name, arg)
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise PickleError(f"it is broken ({shown(error, 80)})") from None
    raise PickleError("it has no end")


_PUSH = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT = frozenset({"BINPUT", "LONG_BINPUT"})
_GET = frozenset({"BINGET", "LONG_BINGET"})
_NOTHING = frozenset({"PROTO", "FRAME"})


class _Machine:
    """The pickle machine with records in the place of calls."""

    def __init__(self, allowed: Callable[[Name], bool]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise PickleError("it is broken (a mark where a value should be)")
        return value

    def to_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise PickleError("it is broken (no mark)")

    def step(self, op: str, arg: Any) -> None:
        if op in _PUSH:
            self.stack.append(arg)
        elif op in _PUT:
            self.memo[arg] = self.top()
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = self.top()
        elif op in _GET:
            self.stack.append(self.memo[arg])
        elif op in _CONSTANTS:
            self.stack.append(_CONSTANTS[op])
        elif op in _TUPLES:
            self.stack[-_TUPLES[op] :] = [tuple(self.last(_TUPLES[op]))]
        elif op not in _NOTHING:
            act = _ACTS.get(op)
            if act is None:
                raise PickleError(f"it uses the opcode {op}, which is not read here")
            act(self, arg)

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise PickleError("it is broken (a mark where a value should be)")
        return self.stack[-1]

    def last(self, count: int) -> list[Any]:
        values = self.stack[-count:]
        if len(values) < count or any(v is _MARK for v in values):
            raise PickleError("it is broken (too few values)")
        return values

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise PickleError("it is broken (a name that is no text)")
        made = Name(module, name)
        if not self.allowed(made):
            raise PickleError(f"it names {shown(made, 80)}, which is not on the list of what may stand there")
        self.stack.append(made)

    def call(self, args: Any, target: Any) -> None:
        if not isinstance(target, Name):
            raise PickleError("it is broken (a call of what is no name)")
        self.stack.append(Record(target, args if isinstance(args, tuple) else (args,)))


def _global(machine: _Machine, arg: Any) -> None:
    module, _, name = str(arg).partition(" ")
    machine.name(module, name)


def _stack_global(machine: _Machine, _arg: Any) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _reduce(machine: _Machine, _arg: Any) -> None:
    args, target = machine.pop(), machine.pop()
    machine.call(args, target)


def _new_with_keywords(machine: _Machine, _arg: Any) -> None:
    keywords, args, target = machine.pop(), machine.pop(), machine.pop()
    machine.call(args, target)
    machine.stack[-1].state = keywords


def _build(machine: _Machine, _arg: Any) -> None:
    state, target = machine.pop(), machine.top()
    if not isinstance(target, Record):
        raise PickleError("it is broken (a state for what is no object)")
    target.state = state


def _set_items(machine: _Machine, values: list[Any]) -> None:
    target = machine.top()
    pairs = target if isinstance(target, Pairs) else target.items if isinstance(target, Record) else None
    if pairs is None or len(values) % 2:
        raise PickleError("it is broken (items for what is no dictionary)")
    pairs.pairs.extend(zip(values[::2], values[1::2], strict=True))


def _append(machine: _Machine, values: list[Any]) -> None:
    target = machine.top()
    members = target.members if isinstance(target, Record) else target.items if isinstance(target, Bag) else target
    if not isinstance(members, list):
        raise PickleError("it is broken (members for what is no list)")
    members.extend(values)


def _pop_one(machine: _Machine, _arg: Any) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine, _arg: Any) -> None:
    machine.to_mark()


def _set_item(machine: _Machine, _arg: Any) -> None:
    values = machine.last(2)
    del machine.stack[-2:]
    _set_items(machine, values)


_ACTS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda m, _: m.stack.append(_MARK),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append(Pairs()),
    "EMPTY_SET": lambda m, _: m.stack.append(Bag([])),
    "LIST": lambda m, _: m.stack.append(m.to_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.to_mark())),
    "FROZENSET": lambda m, _: m.stack.append(Bag(m.to_mark())),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_with_keywords,
    "BUILD": _build,
    "SETITEM": _set_item,
    "SETITEMS": lambda m, _: _set_items(m, m.to_mark()),
    "APPEND": lambda m, _: _append(m, [m.pop()]),
    "APPENDS": lambda m, _: _append(m, m.to_mark()),
    "ADDITEMS": lambda m, _: _append(m, m.to_mark()),
    "BINPERSID": lambda m, _: m.stack.append(Persistent(m.pop())),
    "POP": _pop_one,
    "POP_MARK": _pop_mark,
}


def values_of(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of a dictionary, whichever class it had; nothing for anything else."""
    if isinstance(thing, Pairs):
        yield from thing.pairs
    elif isinstance(thing, Record):
        yield from thing.items.pairs

"""Reads a pickle of plain data without running anything of it: a job's file is untrusted input.

Not a guarded `pickle.load` but a reader of its own, for in the standard one a stream of a few bytes can call what it
names, ask for gigabytes (memo indices) or hash for hours (nested tuples as keys). Here a stream can only build
numbers, texts, lists, tuples and dictionaries with plain keys. What else it asks for is refused with its name. The
functions that PyTorch's own writer names (`torch/csrc/jit/serialization/pickler.cpp`) stand for plain data.
"""

import struct
from collections.abc import Callable
from typing import Any

from fleet.errors import InvalidInputError

MAX_STEPS = 20_000_000
"""Operations of one stream. A dump of 20,000 records with 40 frames each has a quarter of it."""
MAX_DEPTH = 64
"""Open marks at once; the shape of a dump needs 6."""

_LIST_BUILDERS = {"build_intlist", "build_doublelist", "build_boollist"}
_ALLOWED = {("torch.jit._pickle", name) for name in (*_LIST_BUILDERS, "restore_type_tag")} | {
    ("collections", "OrderedDict")
}


class _Named:
    """A function that the stream names, of the few that stand for plain data. It is never called."""

    def __init__(self, name: str) -> None:
        self.name = name


_MARK: Any = object()


class _Machine:
    """The stack and the memo of one stream."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.depth = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise InvalidInputError("the pickle is cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 300)
        if end < 0:
            raise InvalidInputError("the pickle is cut off")
        text = self.data[self.at : end].decode("utf-8", errors="replace")
        self.at = end + 1
        return text

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise InvalidInputError("the pickle takes more than it holds")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise InvalidInputError(f"the pickle fills what is no {kind.__name__}")
        return self.stack[-1]

    def marked(self) -> list[Any]:
        """What stands above the last mark, which goes too."""
        for back in range(len(self.stack) - 1, -1, -1):
            if self.stack[back] is _MARK:
                items = self.stack[back + 1 :]
                del self.stack[back:]
                self.depth -= 1
                return items
        raise InvalidInputError("the pickle takes more than it holds")

    def mark(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidInputError(f"the pickle is nested deeper than {MAX_DEPTH} marks")
        self.stack.append(_MARK)

    def remember(self, index: int) -> None:
        if not self.stack or self.stack[-1] is _MARK:
            raise InvalidInputError("the pickle takes more than it holds")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise InvalidInputError("the pickle asks for what it never kept")
        self.stack.append(self.memo[index])

    def put(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise InvalidInputError("the pickle has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | bool | None):  # hashing anything else may take hours
                raise InvalidInputError("the pickle has a key that is no plain value")
            target[key] = value

    def name(self, module: str, name: str) -> None:
        if (module, name) not in _ALLOWED:
            raise InvalidInputError(f"the pickle asks for {module[:80]}.{name[:80]}, which is refused; nothing ran")
        self.stack.append(_Named(name))

    def reduce(self) -> None:
        given, function = self.pop(), self.pop()
        if not isinstance(function, _Named) or not isinstance(given, tuple):
            raise InvalidInputError("the pickle calls what is no function of its writer")
        if function.name == "OrderedDict" and not given:
            self.stack.append({})
        elif given and isinstance(given[0], list | dict):
            self.stack.append(given[0])
        else:
            raise InvalidInputError(f"the pickle calls {function.name} with what it does not take")


def _integer(size: int, *, signed: bool) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(int.from_bytes(m.take(size), "little", signed=signed))


def _text(size: int) -> Callable[[_Machine], None]:
    def read(m: _Machine) -> None:
        length = int.from_bytes(m.take(size), "little")
        m.stack.append(m.take(length).decode("utf-8", errors="replace"))

    return read


def _at(size: int, act: Callable[[_Machine, int], None]) -> Callable[[_Machine], None]:
    return lambda m: act(m, int.from_bytes(m.take(size), "little"))


def _tuple(size: int) -> Callable[[_Machine], None]:
    def build(m: _Machine) -> None:
        items = [m.pop() for _ in range(size)]
        m.stack.append(tuple(reversed(items)))

    return build


def _long(m: _Machine) -> None:
    m.stack.append(int.from_bytes(m.take(m.take(1)[0]), "little", signed=True))


def _append(m: _Machine) -> None:
    item = m.pop()
    m.top(list).append(item)


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.put([key, value])


def _put_marked(m: _Machine) -> None:
    items = m.marked()
    m.put(items)


def _append_marked(m: _Machine) -> None:
    items = m.marked()
    m.top(list).extend(items)


def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    m.name(str(module), str(name))


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): act
    for code, act in {
        b"\x80": lambda m: m.take(1) and None,  # protocol
        b"\x95": lambda m: m.take(8) and None,  # frame
        b"(": _Machine.mark,
        b"0": lambda m: m.pop() and None,
        b"N": lambda m: m.stack.append(None),
        b"\x88": lambda m: m.stack.append(True),
        b"\x89": lambda m: m.stack.append(False),
        b"K": _integer(1, signed=False),
        b"M": _integer(2, signed=False),
        b"J": _integer(4, signed=True),
        b"\x8a": _long,
        b"G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
        b"X": _text(4),
        b"\x8c": _text(1),
        b"\x8d": _text(8),
        b"U": _text(1),
        b"C": _text(1),
        b"B": _text(4),
        b"}": lambda m: m.stack.append({}),
        b"]": lambda m: m.stack.append([]),
        b")": lambda m: m.stack.append(()),
        b"t": lambda m: m.stack.append(tuple(m.marked())),
        b"\x85": _tuple(1),
        b"\x86": _tuple(2),
        b"\x87": _tuple(3),
        b"a": _append,
        b"e": _append_marked,
        b"s": _set_item,
        b"u": _put_marked,
        b"q": _at(1, _Machine.remember),
        b"r": _at(4, _Machine.remember),
        b"\x94": lambda m: m.remember(len(m.memo)),
        b"h": _at(1, _Machine.recall),
        b"j": _at(4, _Machine.recall),
        b"c": lambda m: m.name(m.line(), m.line()),
        b"\x93": _stack_global,
        b"R": _Machine.reduce,
    }.items()
}
_STOP = ord(".")


def load_plain(data: bytes) -> Any:
    """The plain data of a pickle (protocols 2 to 5).

    Parts may be shared or lie in one another: whoever walks through it bounds the walk. Raises InvalidInputError for
    what is cut off, broken, too large, or asks for anything but plain data.
    """
    machine = _Machine(data)
    operations = _OPERATIONS
    for _ in range(MAX_STEPS):
        if machine.at >= len(data):
            raise InvalidInputError("the pickle is cut off")
        code = data[machine.at]
        machine.at += 1
        if code == _STOP:
            return machine.pop()
        act = operations.get(code)
        if act is None:
            raise InvalidInputError(f"the pickle holds more than plain data (operation {code:#04x}); nothing ran")
        act(machine)
    raise InvalidInputError(f"the pickle has more than {MAX_STEPS} operations")

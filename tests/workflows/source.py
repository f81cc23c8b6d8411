"""What the source of the runbooks says: which modules run inside the sandbox's trust, what in them would not replay,
and which commands each function gives in which order."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN_MODULES = {
    *("time", "random", "uuid", "secrets", "os", "sys", "socket", "subprocess", "threading", "multiprocessing"),
    *(
        "concurrent",
        "tempfile",
        "shutil",
        "urllib.request",
        "http",
        "httpx2",
        "sqlite3",
        "sqlalchemy",
        "requests",
        "logging",
    ),
}
"""Clocks, chance, the machine, and I/O: none of them is the same on a replay."""
FORBIDDEN_CALLS = {
    *("open", "print", "input", "exec", "eval", "__import__", "id", "hash"),
    *("asyncio.wait", "asyncio.as_completed", "asyncio.sleep", "asyncio.to_thread", "asyncio.get_event_loop"),
    *("asyncio.run", "asyncio.timeout", "asyncio.open_connection"),
}
FORBIDDEN_METHODS = {"now", "utcnow", "today", "uuid4", "read_text", "write_text", "read_bytes", "open"}
"""Of anything but `workflow` and `self`, whose `now` is the workflow's own time."""
ORDER_MATTERS = {"tuple", "list", "enumerate", "iter", "next", "zip", "dict", "map", "filter"}
ORDER_IS_LOST = {"sorted", "any", "all", "set", "frozenset", "min", "max", "sum", "len", "Counter"}


class Found(NamedTuple):
    """One thing in the source that would not replay."""

    where: str
    what: str


def module_file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def passed_through() -> dict[str, Path]:
    """`workflows/*` and every module of `fleet` and `activities` that they import, directly or not."""
    found: dict[str, Path] = {}
    waiting = [f"workflows.{p.stem}" for p in sorted((ROOT / "workflows").glob("*.py")) if p.stem != "__init__"]
    while waiting:
        name = waiting.pop()
        file = module_file(name)
        if name in found or file is None:
            continue
        found[name] = file
        waiting += _imports(ast.parse(file.read_text()))
    return found


def _imports(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [n for n in names if n.split(".")[0] in {"workflows", "fleet", "activities"}]


# -- what would not replay


def lint(name: str, text: str) -> list[Found]:
    """Everything in a module's text that would not replay."""
    tree = ast.parse(text)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    sets = _set_names(tree)
    found: list[Found] = []
    for node in ast.walk(tree):
        for what in (*_bad_import(node), *_bad_call(node), *_bad_order(node, parents, sets)):
            found.append(Found(f"{name}:{getattr(node, 'lineno', 0)}", what))
    return found


def _bad_import(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"imports {a.name}" for a in node.names if _is_forbidden(a.name))
    elif isinstance(node, ast.ImportFrom) and node.module and _is_forbidden(node.module):
        yield f"imports {node.module}"


def _is_forbidden(module: str) -> bool:
    return module in FORBIDDEN_MODULES or module.split(".")[0] in FORBIDDEN_MODULES


def _bad_call(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func)
    if called in FORBIDDEN_CALLS:
        yield f"calls {called}"
    if isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS:
        owner = ast.unparse(node.func.value)
        if owner not in {"workflow", "self"}:
            yield f"calls {called}"


def _set_names(tree: ast.AST) -> set[str]:
    """Names and attributes that hold a set anywhere in the module."""
    names: set[str] = set()
    targets: list[ast.expr]
    value: ast.expr | None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value, note = node.targets, node.value, ""
        elif isinstance(node, ast.AnnAssign):
            targets, value, note = [node.target], node.value, ast.unparse(node.annotation)
        elif isinstance(node, ast.arg) and node.annotation:
            targets, value, note = [ast.Name(node.arg)], None, ast.unparse(node.annotation)
        else:
            continue
        if note.startswith(("set[", "frozenset[", "AbstractSet")) or (value is not None and _is_set(value, names)):
            names |= {ast.unparse(t) for t in targets}
    return names


def _is_set(node: ast.AST, names: Iterable[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        return called.split("[")[0] in {"set", "frozenset"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, names) or _is_set(node.right, names)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in names


def _bad_order(node: ast.AST, parents: dict[ast.AST, ast.AST], sets: set[str]) -> Iterator[str]:
    """A set whose order, another one in each process, gets into a sequence or a loop."""
    if isinstance(node, ast.For) and _is_set(node.iter, sets):
        yield f"loops over a set: {ast.unparse(node.iter)}"
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        if any(_is_set(g.iter, sets) for g in node.generators) and not _order_is_lost(node, parents):
            yield f"builds a sequence from a set: {ast.unparse(node)}"
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func).split(".")[-1]
        if called in ORDER_MATTERS | {"join"} and any(_is_set(a, sets) for a in node.args):
            yield f"orders a set: {ast.unparse(node)}"
    elif isinstance(node, ast.Starred) and _is_set(node.value, sets) and not _order_is_lost(node, parents):
        yield f"orders a set: {ast.unparse(parents[node])}"


def _order_is_lost(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """It ends in a set, or in a call whose result is the same for every order."""
    above: ast.AST | None = parents.get(node)
    while above is not None and not isinstance(above, ast.stmt):
        if isinstance(above, ast.Set | ast.SetComp):
            return True
        if isinstance(above, ast.Call):
            return ast.unparse(above.func).split(".")[-1].lstrip("_") in ORDER_IS_LOST
        above = parents.get(above)
    return False


# -- the commands


def fingerprint() -> dict[str, list[str]]:
    """For each function of the runbooks, the commands that its source gives, in order. A changed list is a change
    that running runbooks may not survive."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "workflows").glob("*.py")):
        for owner in ast.parse(file.read_text()).body:
            if not isinstance(owner, ast.ClassDef):
                continue
            for function in owner.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    commands = [*_handler(function), *_commands(function)]
                    if commands:
                        found[f"{file.stem}.{owner.name}.{function.name}"] = commands
    return found


def _handler(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            kind = ast.unparse(decorator.func).removeprefix("workflow.")
            if kind in {"signal", "update", "query"}:
                yield f"handles {kind} " + ", ".join(
                    ast.unparse(k.value) for k in decorator.keywords if k.arg == "name"
                )


def _commands(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    calls.sort(key=lambda n: (n.lineno, n.col_offset))
    return [text for call in calls if (text := _command(call))]


_PLAIN = {
    "workflow.sleep": "timer",
    "workflow.upsert_search_attributes": "search attributes",
    "workflow.upsert_memo": "memo",
    "workflow.continue_as_new": "continue as new",
    "self.at": "search attributes by at()",
    "self.ask": "question",
    "self.allowed": "question by mode",
    "self.policy": "activity READ_POLICY",
    "asyncio.create_task": "task",
}


def _command(call: ast.Call) -> str:
    called = ast.unparse(call.func)
    first = ast.unparse(call.args[0]) if call.args else ""
    if called in {"self.act", "self.must"}:
        return f"activity {first.removeprefix('api.')}"
    if called == "workflow.execute_activity":
        return "activity"
    if called in {"workflow.execute_child_workflow", "workflow.start_child_workflow"}:
        return f"child {first}"
    if called == "workflow.wait_condition":
        return "timer" if any(k.arg == "timeout" for k in call.keywords) else ""
    if called.endswith(".signal") and first.startswith("Signal."):
        return f"signal {first}"
    return _PLAIN.get(called, "")

"""Python sources: histories that lose their oldest messages, and tools whose order is left to chance."""

import ast
import re
from collections.abc import Iterator

from kvtool.blocks import fingerprint
from kvtool.errors import KvtoolError
from kvtool.report import Finding, Fix, Location

_HISTORY = re.compile(r"histor|messages?|conversation|transcript|chat_?log|turns", re.I)
_SENT = re.compile(r"(?:messages?|input|contents?|(?:chat_?)?history|conversation|prompt)$", re.I)
"""Arguments and variables that become a request's messages."""
_TOOLS = re.compile(r"(?:^|_)(?:tools|functions|tool_schemas)$", re.I)
UNORDERED = {"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "set", "frozenset"}
"""Calls that give their items in an order of their own."""
DEPTH = 4
"""Names that are followed into one another."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_lists(source: str, file: str) -> list[Finding]:
    """Findings of a module that can be parsed, by line."""
    try:
        tree = ast.parse(source)
        return sorted(_findings(tree, file), key=lambda one: (one.location.row, one.code))
    except RecursionError as error:
        raise KvtoolError(f"{file}: nested too deeply to be followed") from error


def _findings(tree: ast.Module, file: str) -> Iterator[Finding]:
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    inside = {id(node) for function in functions for node in ast.walk(function) if node is not function}
    seen: set[tuple[str, int]] = set()
    for scope in (*functions, tree):
        nodes = [node for node in ast.walk(scope) if scope is not tree or id(node) not in inside]
        bound = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        path = scope.name if isinstance(scope, _Function) else ""
        for name, value in _sent(nodes):
            for code, node, message in _faults(name, value, bound):
                if (code, node.lineno) not in seen:
                    seen.add((code, node.lineno))
                    yield _finding(code, node, message, path, file)


def _sent(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of every argument and variable."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from ((one.arg, one.value) for one in node.keywords if one.arg)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield getattr(target, "id", getattr(target, "attr", "")), node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value


def _faults(name: str, value: ast.expr, bound: dict[str, ast.expr]) -> Iterator[tuple[str, ast.expr, str]]:
    if _SENT.search(name):
        for node in _listed(value, bound):
            if _is_window(node):
                text = ast.unparse(node)
                yield "KV403", node, f"`{text[:60]}` drops the oldest message at every turn once it is full"
    elif _TOOLS.search(name):
        for call in _unsorted(value, bound):
            said = ast.unparse(call.func) if isinstance(call, ast.Call) else "a set"
            yield "KV201", call, f"the order of {name} is that of `{said[:60]}`: sort it"


def _listed(value: ast.expr, bound: dict[str, ast.expr], depth: int = 0) -> Iterator[ast.expr]:
    """The lists that a list is put together from, or itself; names are followed."""
    parts: list[ast.expr] = []
    match value:
        case ast.BinOp(op=ast.Add()):
            parts = [value.left, value.right]
        case ast.List() | ast.Tuple():
            parts = [element.value for element in value.elts if isinstance(element, ast.Starred)]
        case ast.IfExp():
            parts = [value.body, value.orelse]
        case ast.ListComp() | ast.GeneratorExp():
            parts = [value.generators[0].iter]
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner]):
            parts = [inner]
        case ast.Name() if value.id in bound and depth < DEPTH:
            parts, depth = [bound[value.id]], depth + 1
        case _:
            yield value
    for part in parts:
        yield from _listed(part, bound, depth)


def _is_window(node: ast.expr) -> bool:
    """`history[-20:]`: of more than the last message, with a bound that is counted from the end."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
        return False
    lower, base = node.slice.lower, node.value
    if (
        node.slice.upper is not None
        or not isinstance(lower, ast.UnaryOp)
        or not isinstance(lower.op, ast.USub)
    ):
        return False
    last = isinstance(lower.operand, ast.Constant) and lower.operand.value == 1
    return not last and bool(_HISTORY.search(getattr(base, "id", getattr(base, "attr", ""))))


def _unsorted(value: ast.expr, bound: dict[str, ast.expr], depth: int = 0) -> Iterator[ast.expr]:
    """What gives its items in no order, outside of `sorted(...)`; names are followed."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        if name == "sorted":
            return
        if name in UNORDERED:
            yield value
            return
    if isinstance(value, ast.Set | ast.SetComp):
        yield value
        return
    if isinstance(value, ast.Name) and value.id in bound and depth < DEPTH:
        yield from _unsorted(bound[value.id], bound, depth + 1)
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.comprehension):
            yield from _unsorted(child.iter, bound, depth)
        elif isinstance(child, ast.expr) and not isinstance(value, ast.ListComp | ast.GeneratorExp):
            yield from _unsorted(child, bound, depth)


def _finding(code: str, node: ast.expr, message: str, path: str, file: str) -> Finding:
    name, role, fix = {
        "KV201": ("tool-order", "tools", Fix("sort", True)),
        "KV403": ("sliding-window", None, Fix("report", False)),
    }[code]
    text = ast.unparse(node)
    return Finding(
        code=code,
        name=name,
        severity="warning",
        message=message,
        fingerprint=fingerprint(code.encode(), path.encode(), text.encode()),
        location=Location(file, node.lineno, path, role, 0, 0),
        slot=text[:120],
        examples=[],
        requests=0,
        sessions=0,
        distinct_values=0,
        lost_tokens=0,
        hit_rate_if_fixed=0.0,
        fix=fix,
    )

"""Python sources as a prompt's pieces: names, concatenation and calls followed over `ast`.

A small abstract interpreter: an expression becomes pieces (fixed text and expressions), a name what it was
last bound to, a call to a function of the same module what that function returns. Nothing of the file is
executed. What runs at import is frozen for the process and counts as constant.
"""

import ast
import re
from dataclasses import replace

from kvtool.lint.static.pieces import Piece, Prompt

LEAST_TEXT = 80
"""Characters of fixed text from which a string is taken for a prompt."""
DEPTH = 8
"""Calls that are followed into one another."""
MOST_REPEATED = 100_000
"""Characters up to which `text * n` is written out."""
MOST_PIECES = 1000
"""Pieces of a text that are followed: `text += text` doubles."""
WRAPPERS = {
    "dedent",
    "cleandoc",
    "strip",
    "lstrip",
    "rstrip",
    "str",
    "SystemMessage",
    "HumanMessage",
    "encode",
}

Pieces = list[Piece]


class Interpreter:
    """Of one module; `prompts` are those that were kept."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self.lines = [0]
        for text in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(text))
        self.functions = {
            node.name: node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self.frozen: dict[str, Pieces] = {}
        self.known: dict[tuple[str, bool], Pieces] = {}
        self.prompts: list[Prompt] = []
        self.seen: set[tuple[int, int]] = set()

    # positions

    def span(self, node: ast.AST) -> tuple[int, int]:
        """[start, end) of a node in characters of the source."""
        assert isinstance(node, ast.expr | ast.stmt)
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
        )

    def _at(self, line: int, column: int) -> int:
        text = self.source[self.lines[line - 1] : self.lines[line]]
        return self.lines[line - 1] + len(text.encode()[:column].decode(errors="ignore"))

    def fixed(self, node: ast.AST, text: str) -> Piece:
        start, end = self.span(node)
        return Piece(text, None, node.lineno, start, end)  # type: ignore[attr-defined]

    def varying(self, node: ast.expr, env: dict[str, Pieces], frozen: bool) -> Piece:
        start, end = self.span(node)
        hint = []
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            hint += [piece.expression or "" for piece in env.get(name, self.frozen.get(name, []))]
            if name in self.functions:
                hint.append(ast.unparse(self.functions[name])[:400])
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        known = {name for name in names if name in self.frozen and name not in env}
        constant = frozen or names == known
        return Piece(
            self.source[start:end], ast.unparse(node), node.lineno, start, end, constant, " ".join(hint)
        )

    # expressions

    def pieces(self, node: ast.expr, env: dict[str, Pieces], frozen: bool, depth: int = 0) -> Pieces:
        """What `node` prints. `frozen`: it runs at import."""
        if isinstance(node, ast.Constant):
            return (
                [self.fixed(node, node.value)]
                if isinstance(node.value, str)
                else [self.fixed(node, str(node.value))]
            )
        if isinstance(node, ast.JoinedStr):
            found: Pieces = []
            for value in node.values:
                inner = value.value if isinstance(value, ast.FormattedValue) else value
                found += self.pieces(inner, env, frozen, depth)
            return found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.pieces(node.left, env, frozen, depth) + self.pieces(node.right, env, frozen, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self._is_text(node.left):
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return self._percent(node.left, values, env, frozen)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            repeated = _repeated(node)
            if repeated is not None:
                return [self.fixed(node, repeated)]
        if isinstance(node, ast.Name):
            return self._named(node, env, frozen)
        if isinstance(node, ast.List | ast.Tuple):
            return [piece for element in node.elts for piece in self.pieces(element, env, frozen, depth)]
        if isinstance(node, ast.IfExp):
            return self.pieces(node.body, env, frozen, depth) or self.pieces(node.orelse, env, frozen, depth)
        if isinstance(node, ast.Call) and depth < DEPTH:
            called = self._called(node, env, frozen, depth)
            if called is not None:
                return called
        return [self.varying(node, env, frozen)]

    def _named(self, node: ast.Name, env: dict[str, Pieces], frozen: bool) -> Pieces:
        bound = env.get(node.id, self.frozen.get(node.id))
        if bound is None:
            return [self.varying(node, env, frozen)]
        if any(piece.expression is None and len(piece.text) > 1 for piece in bound) or len(bound) > 1:
            return bound  # text, put together elsewhere
        return [self.varying(node, env, frozen)]

    def _called(self, node: ast.Call, env: dict[str, Pieces], frozen: bool, depth: int) -> Pieces | None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute):
            target = function.value
            if name == "format":
                return self._formatted(target, node, env, frozen)
            if name == "join" and len(node.args) == 1:
                return self.pieces(node.args[0], env, frozen, depth + 1)
            if name == "replace" and len(node.args) >= 2:
                return self._replaced(target, node.args[0], node.args[1], env, frozen)
            if name in WRAPPERS and not node.args:
                return self.pieces(target, env, frozen, depth + 1)
        if name in WRAPPERS and (node.args or node.keywords):
            inner = node.args[0] if node.args else node.keywords[0].value
            return self.pieces(inner, env, frozen, depth + 1)
        if name in self.functions and _is_own(function):
            returned = self.returned(self.functions[name], frozen, depth + 1)
            if sum(len(piece.text) for piece in returned if piece.expression is None) >= LEAST_TEXT // 4:
                return returned
        return None

    def _is_text(self, node: ast.expr) -> bool:
        return isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        )

    def _percent(
        self, left: ast.expr, values: list[ast.expr], env: dict[str, Pieces], frozen: bool
    ) -> Pieces:
        found: Pieces = []
        rest = iter(values)
        for piece in self.pieces(left, env, frozen):
            if piece.expression is not None:
                found.append(piece)
                continue
            for text in re.split(r"(%[-#0 +]*\d*(?:\.\d+)?[sdrfgxi])", piece.text):
                value = next(rest, None) if re.fullmatch(r"%[^%]*[sdrfgxi]", text) else None
                found.append(replace(piece, text=text) if value is None else self.varying(value, env, frozen))
        return found

    def _formatted(self, target: ast.expr, call: ast.Call, env: dict[str, Pieces], frozen: bool) -> Pieces:
        values = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        found: Pieces = []
        for piece in self.pieces(target, env, frozen):
            if piece.expression is not None:
                found.append(piece)
                continue
            place = 0
            for text in re.split(r"(\{[^{}]*\})", piece.text):
                if not re.fullmatch(r"\{[^{}]*\}", text):
                    found.append(replace(piece, text=text))
                    continue
                key = re.split(r"[.:!\[]", text[1:-1])[0]
                value = values.get(key)
                if value is None and (key == "" or key.isdigit()):
                    number = int(key) if key else place
                    value = call.args[number] if number < len(call.args) else None
                    place += 1
                found.append(
                    replace(piece, text=text, expression=key or "?")
                    if value is None
                    else self.varying(value, env, frozen)
                )
        return found

    def _replaced(
        self, target: ast.expr, old: ast.expr, new: ast.expr, env: dict[str, Pieces], frozen: bool
    ) -> Pieces | None:
        if not (isinstance(old, ast.Constant) and isinstance(old.value, str) and old.value):
            return None
        found: Pieces = []
        for piece in self.pieces(target, env, frozen):
            if piece.expression is not None or old.value not in piece.text:
                found.append(piece)
                continue
            for number, text in enumerate(piece.text.split(old.value)):
                if number:
                    found += self.pieces(new, env, frozen)
                found.append(replace(piece, text=text))
        return found

    # statements

    def returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef, frozen: bool, depth: int) -> Pieces:
        """Pieces of the longest text that a function returns; nothing for one that calls itself."""
        key = (function.name, frozen)
        if key not in self.known:
            self.known[key] = []
            results: list[Pieces] = []
            self.body(function.body, {}, frozen, depth, results)
            self.known[key] = max(
                results,
                key=lambda pieces: sum(len(p.text) for p in pieces if p.expression is None),
                default=[],
            )
        return self.known[key]

    def body(
        self,
        statements: list[ast.stmt],
        env: dict[str, Pieces],
        frozen: bool,
        depth: int,
        results: list[Pieces],
    ) -> None:
        """Run statements in order, every branch once."""
        for statement in statements:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        env[target.id] = self.pieces(statement.value, env, frozen, depth)[:MOST_PIECES]
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                more = self.pieces(statement.value, env, frozen, depth)
                env[statement.target.id] = (env.get(statement.target.id, []) + more)[:MOST_PIECES]
            elif isinstance(statement, ast.Return) and statement.value is not None:
                results.append(self.pieces(statement.value, env, frozen, depth))
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                call = statement.value.func
                if (
                    isinstance(call, ast.Attribute)
                    and call.attr == "append"
                    and isinstance(call.value, ast.Name)
                ):
                    more = [
                        piece
                        for arg in statement.value.args
                        for piece in self.pieces(arg, env, frozen, depth)
                    ]
                    env[call.value.id] = (env.get(call.value.id, []) + more)[:MOST_PIECES]
            for block in ("body", "orelse", "finalbody"):
                inner = getattr(statement, block, None)
                if isinstance(inner, list) and not isinstance(
                    statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
                ):
                    self.body(inner, env, frozen, depth, results)

    def keep(self, path: str, role: str | None, pieces: Pieces) -> None:
        """Enter a prompt if it is one, each text once."""
        text = sum(len(piece.text) for piece in pieces if piece.expression is None)
        spans = {
            (piece.start, piece.end)
            for piece in pieces
            if piece.expression is not None and not piece.constant
        }
        if text >= LEAST_TEXT and spans and not spans <= self.seen:
            self.seen |= spans
            self.prompts.append(Prompt(path, role, tuple(pieces)))


def _repeated(node: ast.BinOp) -> str | None:
    """`"-" * 40` as the text that it is; None where it is anything else."""
    for text, times in ((node.left, node.right), (node.right, node.left)):
        if (
            isinstance(text, ast.Constant)
            and isinstance(times, ast.Constant)
            and isinstance(text.value, str)
            and type(times.value) is int
            and len(text.value) * times.value <= MOST_REPEATED
        ):
            return text.value * times.value
    return None


def _is_own(function: ast.expr) -> bool:
    """`name(...)`, `self.name(...)` or `cls.name(...)`: a function of this module, as far as can be seen."""
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name) and function.value.id in ("self", "cls")
    return isinstance(function, ast.Name)

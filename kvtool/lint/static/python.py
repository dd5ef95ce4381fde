"""Python sources: how prompts are put together, followed through names, concatenation and calls.

A small abstract interpreter over `ast`: an expression becomes pieces (fixed text and expressions), a name
what it was last bound to, a call to a function of the same module what that function returns. Nothing of
the file is executed. What runs at import is frozen for the process and counts as constant; a callable
that is passed on (`partial_variables={"now": clock}`) runs per request and does not.
"""

import ast
import re
from dataclasses import replace

from kvtool.errors import KvtoolError
from kvtool.lint.static.pieces import Piece, Prompt
from kvtool.lint.static.text import split

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
SLOT_CALLS = {
    "from_template",
    "PromptTemplate",
    "from_messages",
    "ChatPromptTemplate",
    "Template",
    "substitute",
}

_NAMED = re.compile(r"prompt|system|instruct|persona|preamble|guideline|few_?shot", re.I)
_SPEAKS = re.compile(
    r"\b(?:you are|you're|your (?:task|job|role|goal)|as an? (?:\w+ )?(?:assistant|agent)|the user|"
    r"answer (?:the|in|only|with)|respond (?:in|with|only|to)|never (?:invent|reveal|mention)|"
    r"du bist|sie sind|eres|tu es|vous êtes|sei un|você é)\b|你是|您是|あなたは",
    re.I,
)
_FOR_PEOPLE = re.compile(
    r"err(?:or|_|s?$)|exception|warn|usage|help|docs?(?:_|$|tring)|log(?:_|$)|not_found", re.I
)
_MARKUP = re.compile(r"<!doctype|<html|</script>|</table>|\bSELECT\b.*\bFROM\b|#include", re.I | re.S)

Pieces = list[Piece]


class _Reader:
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


def read_python(source: str, file: str) -> list[Prompt]:
    """Prompts of a module. KvtoolError names the line of a syntax error."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise KvtoolError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise KvtoolError(f"{file}: not Python that can be read: {error}") from error
    reader = _Reader(source, tree)
    try:
        return _prompts(reader, tree)
    except RecursionError as error:
        raise KvtoolError(f"{file}: nested too deeply to be followed") from error


def _prompts(reader: _Reader, tree: ast.Module) -> list[Prompt]:
    reader.body(tree.body, reader.frozen, True, 0, [])
    for name, function in reader.functions.items():
        env: dict[str, Pieces] = {}
        results: list[Pieces] = []
        reader.body(function.body, env, False, 0, results)
        for pieces in results:
            if _is_prompt(name, pieces):
                reader.keep(name, None, pieces)
        for variable, pieces in env.items():
            if _is_prompt(f"{name}.{variable}", pieces):
                reader.keep(f"{name}.{variable}", _role(variable), pieces)
        _calls(reader, function, name, env)
    _calls(reader, tree, "", {}, frozen=True)
    return reader.prompts


def _is_prompt(path: str, pieces: Pieces) -> bool:
    """Whether a text without a message around it is for a model: by its name, or by how it speaks."""
    text = "".join(piece.text for piece in pieces if piece.expression is None)
    if _MARKUP.search(text) or not (_NAMED.search(path) or _SPEAKS.search(text)):
        return False
    return bool(_NAMED.search(path)) or not _FOR_PEOPLE.search(path)


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


def _calls(reader: _Reader, scope: ast.AST, path: str, env: dict[str, Pieces], frozen: bool = False) -> None:
    """Texts in message objects and in the arguments of calls; templates with slots of their own."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if "content" in keys:
                by = node.values[keys.index("role")] if "role" in keys else None
                said = by.value if isinstance(by, ast.Constant) and isinstance(by.value, str) else None
                reader.keep(path, said, reader.pieces(node.values[keys.index("content")], env, frozen))
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            for keyword in node.keywords:
                if keyword.arg in ("system", "instructions", "system_prompt", "prompt", "content"):
                    reader.keep(path, _role(keyword.arg), reader.pieces(keyword.value, env, frozen))
            if name in SLOT_CALLS:
                _slots_of(reader, node, path)


def _slots_of(reader: _Reader, call: ast.Call, path: str) -> None:
    """Template objects (LangChain, string.Template): their text has slots; partials tell how they vary."""
    partials: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        if keyword.arg in ("partial_variables", "partials") and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    partials[str(key.value)] = value
    for node in ast.walk(call):
        if not (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= LEAST_TEXT
        ):
            continue
        start, end = reader.span(node)
        at = reader.source.find(node.value, start, end)
        pieces = []
        for piece in split(node.value, reader.source, at):
            partial = partials.get(piece.expression or "")
            if partial is not None:
                once = isinstance(partial, ast.Call | ast.Constant)
                piece = replace(piece, constant=once, hint=_source(reader, partial))
            if at < 0:
                piece = replace(piece, line=node.lineno, start=start, end=end)
            pieces.append(piece)
        reader.keep(path, None, pieces)


def _source(reader: _Reader, value: ast.expr) -> str:
    function = reader.functions.get(getattr(value, "id", ""))
    return ast.unparse(value) + (" " + ast.unparse(function)[:400] if function is not None else "")


def _role(name: str | None) -> str | None:
    return "system" if name and re.search(r"system|instruction", name, re.I) else None

"""Python sources: which of their texts are prompts, and what in them varies.

A callable that is passed on (`partial_variables={"now": clock}`) runs per request; one that is called
there is frozen for the process.
"""

import ast
import re
from dataclasses import replace

from kvtool.errors import KvtoolError
from kvtool.lint.static.interpreter import LEAST_TEXT, Interpreter, Pieces
from kvtool.lint.static.pieces import Prompt
from kvtool.lint.static.text import split

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


def read_python(source: str, file: str) -> list[Prompt]:
    """Prompts of a module. KvtoolError names the line of a syntax error."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise KvtoolError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise KvtoolError(f"{file}: not Python that can be read: {error}") from error
    reader = Interpreter(source, tree)
    try:
        return _prompts(reader, tree)
    except RecursionError as error:
        raise KvtoolError(f"{file}: nested too deeply to be followed") from error


def _prompts(reader: Interpreter, tree: ast.Module) -> list[Prompt]:
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


def _calls(
    reader: Interpreter, scope: ast.AST, path: str, env: dict[str, Pieces], frozen: bool = False
) -> None:
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


def _slots_of(reader: Interpreter, call: ast.Call, path: str) -> None:
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


def _source(reader: Interpreter, value: ast.expr) -> str:
    function = reader.functions.get(getattr(value, "id", ""))
    return ast.unparse(value) + (" " + ast.unparse(function)[:400] if function is not None else "")


def _role(name: str | None) -> str | None:
    return "system" if name and re.search(r"system|instruction", name, re.I) else None

"""Jinja templates through jinja2's own parser: what is printed, in order, with loops and branches inlined."""

import re

from kvtool.errors import KvtoolError
from kvtool.lint.static.pieces import Piece, Prompt

LOOP_VARIABLES = {"loop", "true", "false", "none"}


def read_jinja(source: str, file: str) -> list[Prompt]:
    """The template as one prompt. KvtoolError names the line of a syntax error."""
    from jinja2 import Environment, TemplateSyntaxError, nodes

    environment = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
    try:
        tree = environment.parse(source)
    except TemplateSyntaxError as error:
        raise KvtoolError(f"{file}, line {error.lineno}: {error.message}") from error
    starts = _line_starts(source)
    outputs = _printed(source)
    constants: set[str] = set()
    bound: dict[str, str] = {}
    pieces: list[Piece] = []

    def walk(node: nodes.Node) -> None:
        if isinstance(node, nodes.TemplateData):
            pieces.append(
                Piece(node.data, None, node.lineno, starts[node.lineno - 1], starts[node.lineno - 1])
            )
        elif isinstance(node, nodes.Output):
            for child in node.nodes:
                if isinstance(child, nodes.TemplateData):
                    walk(child)
                else:
                    printed(child)
        elif isinstance(node, nodes.Assign):
            names = [n.name for n in node.target.find_all(nodes.Name)] or [getattr(node.target, "name", "")]
            for name in names:
                bound[name] = _described(node.node)
                if not list(node.node.find_all((nodes.Name, nodes.Call))) and not isinstance(
                    node.node, nodes.Name | nodes.Call
                ):
                    constants.add(name)
        else:
            for inner in node.iter_child_nodes():
                walk(inner)

    def printed(node: nodes.Node) -> None:
        start, end, text = next(
            (one for one in outputs if line(one[0]) == node.lineno and one[0] not in taken),
            (starts[node.lineno - 1], starts[node.lineno - 1], _described(node)),
        )
        taken.add(start)
        names = {n.name for n in node.find_all(nodes.Name)}
        if isinstance(node, nodes.Name):
            names.add(node.name)
        constant = isinstance(node, nodes.Const) or (bool(names) and names <= constants | LOOP_VARIABLES)
        hint = " ".join(bound.get(name, "") for name in sorted(names))
        pieces.append(Piece(source[start:end], text, node.lineno, start, end, constant, hint))

    def line(position: int) -> int:
        return source.count("\n", 0, position) + 1

    taken: set[int] = set()
    walk(tree)
    return [Prompt("", None, tuple(pieces))]


def _printed(source: str) -> list[tuple[int, int, str]]:
    """(start, end, expression) of every {{ }} in the source."""
    return [
        (match.start(), match.end(), match[1].strip())
        for match in re.finditer(r"\{\{[-+]?(.*?)[-+]?\}\}", source, re.S)
    ]


def _line_starts(source: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", source))]


def _described(node: object) -> str:
    """Names and attributes inside an expression."""
    from jinja2 import nodes

    if not isinstance(node, nodes.Node):
        return ""
    words = [n.name for n in node.find_all(nodes.Name)] + [n.attr for n in node.find_all(nodes.Getattr)]
    if isinstance(node, nodes.Name):
        words.insert(0, node.name)
    if isinstance(node, nodes.Getattr):
        words.insert(0, node.attr)
    return " ".join(words)

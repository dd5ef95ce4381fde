"""Forms of a text that people read alike: line ends, Unicode, white space, JSON layout."""

import ast
import contextlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

SETS = ("required", "type")
"""JSON Schema keywords whose lists have no order. An enum has none either, but models may read one in."""
_LINE_END = re.compile(r"[^\S\n]+$", re.M)


def canonical(text: str) -> str:
    """Equal for texts that differ in form only: JSON or a Python literal with sorted keys, else NFC with
    single spaces."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                return json.dumps(read(stripped), sort_keys=True)
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", stripped))


def canonical_tool(tool: Any) -> Any:
    """`tool` with sorted keys, `type` first as every API prints it around a function, and with sorted lists
    where JSON Schema gives their order no meaning."""
    if isinstance(tool, dict):
        keys = sorted(tool, key=lambda key: (key != "type", key))
        return {key: _set(tool[key]) if key in SETS else canonical_tool(tool[key]) for key in keys}
    return [canonical_tool(item) for item in tool] if isinstance(tool, list) else tool


def _set(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    return canonical_tool(value)


def plain(text: str) -> str:
    """`text` in NFC, with LF line ends and no white space before them."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _LINE_END.sub("", text)


def off_form(texts: Mapping[int, str], conversation: Mapping[int, int]) -> dict[int, str]:
    """Which of an agent's `texts` (by request) stand in another form than usual, and their usual form.

    Equal in canonical form: the most frequent print is the usual one. Where other things vary too, a
    conversation that has both plain texts and others is evidence enough.
    """
    distinct = Counter(texts.values())
    groups: dict[str, list[str]] = {}
    for text in distinct:
        groups.setdefault(canonical(text), []).append(text)
    usual: dict[str, str] = {}
    for group in groups.values():
        best = max(group, key=lambda text: (distinct[text], plain(text) == text))
        usual |= {text: best for text in group if text != best}
    if not usual:
        forms = {text: plain(text) for text in distinct}
        mixed = {(conversation[index], forms[text] == text) for index, text in texts.items()}
        if len(mixed) > len({number for number, _ in mixed}):
            usual = {text: form for text, form in forms.items() if form != text}
    return {index: usual[text] for index, text in texts.items() if text in usual}

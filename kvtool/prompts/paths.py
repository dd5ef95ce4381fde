"""JSON paths such as `messages[0].content`: parse, print, read, and assign without touching the original.

`:json` after a step says that the string there holds JSON text, and the path goes on inside it.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

JSON: Final = ":json"
"""The step that decodes a string; written back with the separators json.dumps uses."""

Step = str | int
_STEP = re.compile(r"\[(\d+)\]|\[\"((?:[^\"\\]|\\.)*)\"\]|(:json)|\.?([^.\[\]:]+(?::(?!json)[^.\[\]:]*)*)")

MISSING: Final = object()


def parse(path: str) -> tuple[Step, ...]:
    """'messages[0].content' -> ('messages', 0, 'content'). ValueError where it is not a path."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(f"not a path: {path}")
        index, quoted, decoded, name = match.groups()
        steps.append(int(index) if index else JSON if decoded else quoted or name)
        position = match.end()
    return tuple(steps)


def child(path: str, step: Step) -> str:
    """`path` one step further."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if not re.fullmatch(r"[^.\[\]:\"]+", step):
        return f"{path}[{json.dumps(step)}]"
    return f"{path}.{step}" if path else step


def get(value: Any, steps: Sequence[Step]) -> Any:
    """What stands at `steps` in `value`, or MISSING."""
    for step in steps:
        if step == JSON:
            try:
                value = json.loads(value)
            except (TypeError, ValueError):
                return MISSING
        elif isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return MISSING
    return value


def changed(value: Any, steps: Sequence[Step], change: Callable[[Any], Any]) -> Any:
    """A copy of `value` with `change` applied at `steps`, which must exist; the rest is shared."""
    if not steps:
        return change(value)
    step, rest = steps[0], steps[1:]
    if step == JSON:
        return json.dumps(changed(json.loads(value), rest, change), ensure_ascii=False)
    copy = value.copy()
    copy[step] = changed(value[step], rest, change)
    return copy

"""From a file to the findings of its templates, by its suffix; tool schema files have checks of their own."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvtool.blocks import fingerprint
from kvtool.errors import KvtoolError
from kvtool.lint.static.jinja import read_jinja
from kvtool.lint.static.judge import findings
from kvtool.lint.static.lists import check_lists
from kvtool.lint.static.pieces import Prompt, line_of
from kvtool.lint.static.python import read_python
from kvtool.lint.static.text import read_structured, read_text
from kvtool.report import Finding, Fix, Location

JINJA, PYTHON = {".j2", ".jinja", ".jinja2"}, {".py"}
STRUCTURED, TEXT = {".json", ".yaml", ".yml"}, {".md", ".txt", ".prompt", ".tmpl", ".mustache"}
SUFFIXES = JINJA | PYTHON | STRUCTURED | TEXT
"""Files that are looked at in folders; a file that is named is looked at whatever its suffix."""


def check_file(path: Path) -> list[Finding]:
    """Findings of one file. KvtoolError names the file and line where it cannot be read."""
    try:
        source = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise KvtoolError(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise KvtoolError(f"{path}: {error.strerror or error}") from error
    file, suffix = str(path), path.suffix.lower()
    if suffix in STRUCTURED:
        data = _decoded(source, file, suffix)
        found = [one for prompt in read_structured(source, data) for one in findings(prompt, file)]
        return found + list(_schema_findings(data, file, source))
    reader: Callable[[str, str], list[Prompt]] = (
        read_jinja if suffix in JINJA else read_python if suffix in PYTHON else _read_text
    )
    found = [one for prompt in reader(source, file) for one in findings(prompt, file)]
    return found + check_lists(source, file) if reader is read_python else found


def _read_text(source: str, file: str) -> list[Prompt]:
    if re.search(r"\{%-?\s*\w+", source):
        return read_jinja(source, file)
    return read_text(source)


def _decoded(source: str, file: str, suffix: str) -> Any:
    if suffix == ".json":
        try:
            return json.loads(source)
        except ValueError as error:
            raise KvtoolError(f"{file}: not JSON: {error}") from error
    import yaml

    try:
        return list(yaml.safe_load_all(source))
    except yaml.YAMLError as error:
        raise KvtoolError(f"{file}: not YAML: {' '.join(str(error).split())}") from error


def _schema_findings(data: Any, file: str, source: str) -> Iterator[Finding]:
    """A tool twice under one name makes the order of tools undefined where they are collected by name."""
    tools = data.get("tools") if isinstance(data, dict) else data
    if not isinstance(tools, list):
        return
    seen: dict[str, int] = {}
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            return
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not ({"parameters", "input_schema"} & function.keys()):
            return
        if name in seen:
            at = source.find(f'"{name}"', source.find(f'"{name}"') + 1)
            yield Finding(
                code="KV203",
                name="schema-churn",
                severity="warning",
                message=f"tool {name} is there twice (also at [{seen[name]}])",
                fingerprint=fingerprint(b"KV203", b"tools", name.encode()),
                location=Location(file, line_of(source, max(at, 0)), f"[{number}]", "tools", 0, 0),
                slot=name,
                examples=[],
                requests=0,
                sessions=0,
                distinct_values=0,
                lost_tokens=0,
                hit_rate_if_fixed=0.0,
                fix=Fix("report", False),
            )
        seen.setdefault(name, number)

"""Settings of lint: the nearest kvtool.toml or pyproject.toml [tool.kvtool], and which rules are on."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.lint.ignores import UNUSED
from kvtool.lint.rules import RULES

KEYS: dict[str, type | tuple[type, ...]] = {
    "select": list,
    "ignore": list,
    "extend-select": list,
    "exclude": list,
    "fail-on": str,
    "baseline": str,
    "min-hit-rate": (float, int),
    "max-regression": (float, int),
    "block-size": int,
    "tokenizer": str,
    "chat-template": str,
    "show-values": bool,
}
SEVERITIES = {"info": 0, "warning": 1, "error": 2}


def nearest_settings(start: Path) -> dict[str, Any]:
    """Settings from `start` upwards: the first kvtool.toml, or pyproject.toml that has [tool.kvtool].

    Keys are option names. An unknown key, a wrong type or an unknown rule is a KvtoolError.
    """
    for folder in (start, *start.parents):
        for name in ("kvtool.toml", "pyproject.toml"):
            path = folder / name
            if path.is_file():
                table = _table(path)
                if table is not None:
                    return _checked(table, path)
    return {}


def _table(path: Path) -> dict[str, Any] | None:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KvtoolError(f"{path}: {error}") from error
    if path.name == "kvtool.toml":
        return document
    table = document.get("tool", {}).get("kvtool")
    return table if isinstance(table, dict) else None


def _checked(table: dict[str, Any], path: Path) -> dict[str, Any]:
    for key, value in table.items():
        if key not in KEYS:
            raise KvtoolError(
                f"{path}: unknown key {key!r} under kvtool", f"known: {', '.join(sorted(KEYS))}"
            )
        if not isinstance(value, KEYS[key]) or (isinstance(value, bool) and KEYS[key] is not bool):
            raise KvtoolError(f"{path}: {key} has the wrong type")
        if key in ("select", "ignore", "extend-select"):
            check_codes(value, f"{path}: {key}")
        if key == "min-hit-rate" and isinstance(value, int | float) and not 0 <= value <= 1:
            raise KvtoolError(f"{path}: min-hit-rate {value} is not a share", "40% is 0.4")
        if key == "fail-on":
            check_fail_on(str(value), f"{path}: {key}")
    settings = {key.replace("-", "_"): value for key, value in table.items()}
    if "baseline" in settings:
        settings["baseline"] = str(path.parent / settings["baseline"])
    return settings


def known_codes() -> dict[str, str]:
    """Code -> name of every rule."""
    codes = {rule.code: rule.name for rule in (RULES.load(name) for name in RULES.names())}
    return {UNUSED: "unused-ignore", **codes}


def check_codes(wanted: Any, where: str) -> None:
    """KvtoolError for what is neither ALL, nor a rule's name, nor a prefix of a code."""
    codes = known_codes()
    for one in wanted:
        if not isinstance(one, str) or not (
            one == "ALL" or one in codes.values() or any(code.startswith(one) for code in codes if one)
        ):
            raise KvtoolError(f"{where}: no rule {one!r}", "see kvtool lint --list-rules")


def check_fail_on(wanted: str | None, where: str) -> None:
    """KvtoolError for what could never stop a run: neither a severity nor a rule."""
    if wanted is not None and wanted not in SEVERITIES:
        check_codes([wanted], where)


def selected(code: str, select: Sequence[str], extend: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether rule `code` is on. The longest prefix that matches decides; of equals, ignore."""
    names = known_codes()

    def reach(patterns: Sequence[str]) -> int:
        hits = [
            0 if one == "ALL" else len(code) if names.get(code) == one else len(one)
            for one in patterns
            if one == "ALL" or names.get(code) == one or code.startswith(one)
        ]
        return max(hits, default=-1)

    return max(reach(select or ["ALL"]), reach(extend)) > reach(ignore)

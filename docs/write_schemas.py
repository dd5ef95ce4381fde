"""Write docs/reference/schemas from the skeletons in docs/reference/json.md: `python docs/write_schemas.py`.

The page is the one source. In its skeletons 0 stands for an integer, 0.0 for a number, "a|b" for one of
those words, one element for all elements of a list, {} and [] for whatever may be in them. Every field is
required but those named here, and more fields are always allowed. A test validates the commands' real
output against what this file would write.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parent / "reference"
FENCE = re.compile(r"```\n(.*?)```", re.DOTALL)

NULLABLE = {
    "kvtool.analysis/1": ["hit_rate.normalized_tokens"],
    "kvtool.lint/1": ["hit_rate.tokens"],
    "kvtool.replay/1": ["requests.cached_tokens", "hit_rate.measured", "hit_rate.predicted", "tokens.cached"],
    "kvtool.shards-ls/1": ["bits_per_element"],
    "kvtool.shards-verify/1": ["faults.block"],
    "kvtool.prewarm/1": [
        *("out", "kl", "gate", "reuse_model", "outlook"),
        *("tokens_per_second", "plan.bits_per_element", "hit_rate.expected"),
    ],
}
"""Fields that may be null, named by their last two names at most."""

UNPRICED = ["lost_tokens", "hit_rate_if_fixed", "marginal_gain"]

UNPLACED = ["location.role", "location.path", "location.row", "location.start", "location.end"]

ONE_OF = 2
"""Words in a skeleton's string that make it a choice."""


def skeletons() -> Iterator[dict[str, Any]]:
    """The page's documents, each with its findings spelled out."""
    page = (REFERENCE / "json.md").read_text(encoding="utf-8")
    fences = FENCE.findall(page)
    (finding,) = (fence for fence in fences if fence.startswith('{"code"'))
    decoder = json.JSONDecoder()
    for fence in fences:
        if fence == finding:
            continue
        rest = fence.replace("FINDING", finding).strip()
        while rest:
            document, end = decoder.raw_decode(rest)
            yield document
            rest = rest[end:].strip()


def schema_of(document: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a skeleton."""
    name = document["schema"]
    nullable = {*NULLABLE.get(name, ()), *UNPRICED, *UNPLACED}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        **_schema(document, "", nullable),
    }
    schema["properties"]["schema"] = {"const": name}
    if name == "kvtool.prewarm/1":  # a dry run ends there
        fields = list(document)
        schema["required"] = fields[: fields.index("notes") + 1]
    return schema


def _schema(value: Any, path: str, nullable: set[str]) -> dict[str, Any]:
    found = _plain(value, path, nullable)
    names = path.split(".")
    if nullable & {names[-1], ".".join(names[-2:])} and "type" in found:
        found["type"] = [found["type"], "null"]
        if "enum" in found:
            found["enum"] = [*found["enum"], None]
    return found


def _plain(value: Any, path: str, nullable: set[str]) -> dict[str, Any]:
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str() if len(words := value.split("|")) >= ONE_OF:
            return {"type": "string", "enum": words}
        case str():
            return {"type": "string"}
        case [item]:
            return {"type": "array", "items": _schema(item, path, nullable)}
        case list():
            return {"type": "array"}
        case dict():
            fields = {name: _schema(each, f"{path}.{name}", nullable) for name, each in value.items()}
            return {"type": "object", **({"properties": fields, "required": list(fields)} if fields else {})}
        case None:
            return {}
    raise AssertionError(value)


def files() -> dict[str, str]:
    """File name -> text."""
    return {
        f"{document['schema'].replace('/', '.')}.json": json.dumps(schema_of(document), indent=1) + "\n"
        for document in skeletons()
    }


def write() -> None:
    """All schemas."""
    folder = REFERENCE / "schemas"
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()

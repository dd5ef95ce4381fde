"""OTLP/JSON: spans and log records of a row, attributes as plain values with their paths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SIGNALS = (
    ("resourceSpans", "scopeSpans", "spans"),
    ("resourceLogs", "scopeLogs", "logRecords"),
)


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of one record: key -> (value, path of that value in the row)."""

    values: dict[str, tuple[Any, str]]

    def get(self, *keys: str) -> Any:
        """Value of the first of `keys` that is there."""
        return next((self.values[key][0] for key in keys if key in self.values), None)

    def place(self, key: str) -> str:
        """Path of a value that is there."""
        return self.values[key][1]

    def first_place(self, *keys: str) -> str | None:
        """Path of the value that `get` gives."""
        return next((self.values[key][1] for key in keys if key in self.values), None)


def records(row: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(`spans` or `logRecords`, record, path) of everything in a row; what has another shape is left out."""
    if not isinstance(row, dict):
        return
    for resource_key, scope_key, kind in SIGNALS:
        for r, resource in enumerate(_objects(row.get(resource_key))):
            for s, scope in enumerate(_objects(resource.get(scope_key))):
                for index, record in enumerate(_objects(scope.get(kind))):
                    yield kind, record, f"{resource_key}[{r}].{scope_key}[{s}].{kind}[{index}]"


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def attributes(record: dict[str, Any], path: str) -> Attributes:
    """The attributes of a span, a span's event or a log record that stands at `path`."""
    found: dict[str, tuple[Any, str]] = {}
    listed = record.get("attributes")
    for index, one in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(one, dict) and isinstance(one.get("key"), str):
            value, step = plain(one.get("value"))
            found[one["key"]] = value, f"{path}.attributes[{index}].value{step}"
    return Attributes(found)


def plain(value: Any) -> tuple[Any, str]:
    """(an AnyValue as a plain value, path step to it); steps into lists and maps end at the AnyValue."""
    if not isinstance(value, dict) or len(value) != 1:
        return value, ""
    kind, inner = next(iter(value.items()))
    if kind == "intValue":
        try:
            return int(inner), ".intValue"
        except (TypeError, ValueError):
            return None, ""
    if kind == "arrayValue":
        items = inner.get("values", []) if isinstance(inner, dict) else []
        return [plain(item)[0] for item in items] if isinstance(items, list) else [], ""
    if kind == "kvlistValue":
        items = inner.get("values", []) if isinstance(inner, dict) else []
        pairs = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        return {str(item.get("key")): plain(item.get("value"))[0] for item in pairs}, ""
    return inner, f".{kind}"

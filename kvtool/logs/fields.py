"""Reading single fields of a row: JSON in strings, times, ids, under the names that logs use."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from kvtool.logs.format import BadRow

JSON_STEP = ":json"
"""Path suffix of a string field whose content is JSON: `input:json.messages[0]` looks inside it."""

SESSION_KEYS = (
    "session_id",
    "sessionId",
    "session",
    "conversation_id",
    "conversationId",
    "conversation",
    "thread_id",
    "threadId",
    "chat_id",
    "dialogue_id",
    "dialog_id",
    "trace_id",
    "traceId",
)
SESSION_HEADERS = ("x-session-id", "session-id", "session_id", "x-conversation-id", "conversation_id")
TENANT_KEYS = ("tenant", "tenant_id", "tenantId", "organization_id", "org_id", "cache_salt")
TIME_KEYS = (
    "timestamp",
    "ts",
    "time",
    "created_at",
    "createdAt",
    "created",
    "start_time",
    "startTime",
    "request_time",
    "requestTime",
    "arrival",
    "arrival_time",
    "datetime",
    "date",
    "@timestamp",
    "timestamp_ms",
    "timestamp_us",
    "timestamp_ns",
)
ID_KEYS = ("request_id", "requestId", "custom_id", "id", "call_id", "uuid")

UNITS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
LATEST = 2**62
"""Bound on an arrival in µs, so that later sums stay within int64."""


def structured(value: Any) -> tuple[Any, str]:
    """(`value`, "") or, for a string that holds a JSON object or array, (the decoded value, ":json")."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value), JSON_STEP
        except (ValueError, RecursionError):
            return value, ""
    return value, ""


def tool_list(tools: Any, where: str, paths: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Tools as a list of objects (empty for none), and where they really stand, entered in `paths`.

    A BadRow for anything else.
    """
    tools, step = structured(tools)
    if tools is None or tools == []:
        return [], where
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow(f"{where} is not a list of objects")
    where += step
    if where != "tools":
        paths["tools"] = where
    return tools, where


def first(row: Any, keys: Iterable[str]) -> Any:
    """Value of the first of `keys` that is present and neither None nor empty."""
    if not isinstance(row, dict):
        return None
    for key in keys:
        value = row.get(key)
        if value is not None and value != "":
            return value
    return None


def text_or_none(value: Any) -> str | None:
    """A name or id as a string: strings and integers are, anything else is not."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def named(row: Any, keys: Iterable[str]) -> str | None:
    """The first of `keys` that holds a usable name or id."""
    if not isinstance(row, dict):
        return None
    for key in keys:
        value = row.get(key)
        if value is not None and (name := text_or_none(value)) is not None:
            return name
    return None


def microseconds(value: Any, unit: str | None = None) -> int | None:
    """A time as µs. ISO text, or a number in `unit` (s, ms, us, ns).

    Without a unit an epoch time tells its own by its size; smaller numbers are seconds.
    Text without a zone is UTC. None for what is no time, or before 1970.
    """
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return _bounded(moment.timestamp() * 1e6)
    if isinstance(value, str):
        return _parsed_time(value.strip(), unit)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if abs(value) > 2**80:
        return None
    if isinstance(value, int) and (unit or _unit_of(value)) == "us":
        return value if 0 <= value < LATEST else None
    return _bounded(value * UNITS[unit or _unit_of(value)])


def _unit_of(value: float) -> str:
    size = abs(value)
    if size >= 1e17:
        return "ns"
    if size >= 1e14:
        return "us"
    return "ms" if size >= 1e11 else "s"


def _bounded(value: float) -> int | None:
    return round(value) if 0 <= value < LATEST else None


def _parsed_time(text: str, unit: str | None) -> int | None:
    try:
        return microseconds(float(text), unit) if "_" not in text else None
    except ValueError:
        pass
    try:
        return microseconds(datetime.fromisoformat(text.replace(",", ".")))
    except (ValueError, OverflowError):
        return None


def time_of(row: Any) -> int | None:
    """Arrival in µs under any of the usual names."""
    if not isinstance(row, dict):
        return None
    for key in TIME_KEYS:
        if row.get(key) is not None:
            unit = key.rpartition("_")[2]
            moment = microseconds(row[key], unit if unit in UNITS else None)
            if moment is not None:
                return moment
    return None


def session_of(*places: Any) -> str | None:
    """Session id in the first of `places` (a row, its metadata, its headers) that has one."""
    for place in places:
        if isinstance(place, dict):
            found = named(place, SESSION_KEYS) or named(place.get("metadata"), SESSION_KEYS)
            if found is None and isinstance(place.get("headers"), dict):
                headers = {str(key).lower(): value for key, value in place["headers"].items()}
                found = named(headers, SESSION_HEADERS)
            if found is not None:
                return found
    return None


def tenant_of(*places: Any) -> str | None:
    """Whose cache it is, where the log says so."""
    return next((found for place in places if (found := named(place, TENANT_KEYS)) is not None), None)


def count_or_none(value: Any) -> int | None:
    """A token count: a non-negative integer (also as a float or digits), else None."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < 18 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**60 and value == int(value) else None


def require(condition: bool, reason: str) -> None:
    """BadRow(reason) unless `condition`."""
    if not condition:
        raise BadRow(reason)

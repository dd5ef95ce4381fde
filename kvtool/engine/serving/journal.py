"""The server's log: a line an event, for people or as JSON. Prompts, answers and keys are never in it."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger("kvtool.serve")


def event(message: str, **fields: Any) -> None:
    """Log something that happened, with numbers to it."""
    log.info(message, extra={"fields": fields})


class Lines(logging.Formatter):
    """time level message name=value ..."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback where there is one."""
        parts = [_time(record), record.levelname, record.getMessage()]
        parts += [f"{name}={value}" for name, value in _fields(record).items()]
        return " ".join(parts) + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, message, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """Always one line."""
        entry = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        entry.update(_fields(record))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


FORMATS = {"text": Lines, "json": JsonLines}


def keep(format: str) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATS[format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

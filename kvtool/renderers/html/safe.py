"""Text of a log inside a page: it stays text, what is invisible is shown, and no script ends early."""

import json
import re
from dataclasses import asdict, is_dataclass
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSEEN = re.compile("[\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
"""Characters that turn the writing direction, so that text could pose as another, or that print nothing."""
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""So that no `</script>` or `<!--` can stand in the embedded JSON."""


def visible(text: str) -> str:
    """`text` with control characters as pictures of themselves and what is unseen by its number."""
    text = _CONTROL.sub(_picture, text.replace("\r\n", "\n"))
    return _UNSEEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def plain(value: Any) -> Any:
    """A dataclass of `kvtool.page` as JSON values, all strings visible."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def script_json(value: Any) -> str:
    """JSON that can stand inside a <script> element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: _IN_SCRIPT[match[0]], text)

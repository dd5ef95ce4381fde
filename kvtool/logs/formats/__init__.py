"""Log formats, one file each: `openai_chat.py` is `--format openai-chat`; FORMAT is its Format class."""

from typing import TYPE_CHECKING

from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.logs.format import Format

FORMATS: "Registry[type[Format]]" = Registry("kvtool.logs.formats", "FORMAT", "log format")

"""Renderers, one file each: they draw a Report. `json.py` is `--output-format json` and exposes render."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.report import Report

RENDERERS: "Registry[Callable[[Report], None]]" = Registry("kvtool.renderers", "render", "output format")

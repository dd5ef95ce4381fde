"""Rules, one file each: `clock_time.py` is the rule named clock-time and exposes RULE."""

from typing import TYPE_CHECKING

from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.lint.rule import Rule

RULES: "Registry[Rule]" = Registry("kvtool.lint.rules", "RULE", "rule")

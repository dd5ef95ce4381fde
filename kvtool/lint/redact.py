"""Values of a log are not for CI logs: letters and digits are masked, the shape stays."""

import re
from collections.abc import Iterable
from dataclasses import replace

from kvtool.report import Finding

LONGEST = 60


def redacted(findings: Iterable[Finding]) -> list[Finding]:
    """Findings whose examples only show what kind of characters stood where."""
    return [replace(finding, examples=[mask(text) for text in finding.examples]) for finding in findings]


def mask(text: str) -> str:
    """'Ann 2025-03-01' -> 'Xxx 0000-00-00', cut to LONGEST characters."""
    text = shape(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def shape(text: str) -> str:
    """`text` with every letter and digit masked, character for character."""
    text = re.sub(r"\d", "0", text)
    return re.sub(r"[^\W\d_]", lambda match: "X" if match[0].isupper() else "x", text)

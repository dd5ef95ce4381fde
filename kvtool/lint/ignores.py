"""Inline ignores in templates: `kvtool: ignore[KV101] reason` on the finding's line or the one above it."""

import re
from collections.abc import Sequence
from pathlib import Path

from kvtool.blocks import fingerprint
from kvtool.report import Finding, Fix, Location

UNUSED = "KV001"
_IGNORE = re.compile(r"kvtool:\s*ignore\[([A-Z0-9,\s]+)\]")


def without_ignored(found: Sequence[Finding], path: Path) -> list[Finding]:
    """`found` in the text file `path`, less what is ignored there, plus a KV001 per unused ignore."""
    ignores: dict[int, set[str]] = {}
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        for match in _IGNORE.finditer(text):
            ignores.setdefault(line, set()).update(
                code.strip() for code in match[1].split(",") if code.strip()
            )
    used: set[tuple[int, str]] = set()
    left = []
    for finding in found:
        row = finding.location.row
        hits = [(line, finding.code) for line in (row, row - 1) if finding.code in ignores.get(line, ())]
        used.update(hits)
        if not hits:
            left.append(finding)
    for line, codes in ignores.items():
        left += [_unused(path, line, code) for code in sorted(codes) if (line, code) not in used]
    return left


def _unused(path: Path, line: int, code: str) -> Finding:
    return Finding(
        code=UNUSED,
        name="unused-ignore",
        severity="warning",
        message=f"nothing is ignored by ignore[{code}]",
        fingerprint=fingerprint(UNUSED.encode(), code.encode(), path.name.encode()),
        location=Location(str(path), line, "", None, 0, 0),
        slot=f"ignore[{code}]",
        examples=[],
        requests=0,
        sessions=0,
        distinct_values=0,
        lost_tokens=0,
        hit_rate_if_fixed=0.0,
        fix=Fix("report", safe=False),
    )

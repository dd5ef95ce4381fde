"""Baselines: findings that are known and accepted, by fingerprint, and the hit rate that they came with."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvtool.errors import KvtoolError
from kvtool.files import write_whole
from kvtool.report import Finding

SCHEMA = "kvtool.baseline/1"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Known fingerprints and the token hit rate of the logs then (None: there were none)."""

    fingerprints: frozenset[str]
    hit_rate: float | None

    def new(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that are not in the baseline."""
        return [finding for finding in findings if finding.fingerprint not in self.fingerprints]


def load_baseline(path: Path) -> Baseline:
    """KvtoolError where the file is missing or no baseline."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KvtoolError(f"{path}: {error.strerror or error}", "write one with --write-baseline") from error
    except ValueError as error:
        raise KvtoolError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise KvtoolError(f"{path}: not a baseline: its schema is not {SCHEMA}")
    findings = document.get("findings")
    rate = document.get("hit_rate")
    if not isinstance(findings, dict) or not isinstance(rate, float | int | None):
        raise KvtoolError(f"{path}: findings or hit_rate have the wrong type")
    return Baseline(frozenset(findings), None if rate is None else float(rate))


def save_baseline(path: Path, findings: Iterable[Finding], hit_rate: float | None) -> None:
    """Write all of `findings`, sorted, so that a diff shows what changed."""
    known = {
        one.fingerprint: f"{one.code} {one.location.path} {one.slot}"
        for one in sorted(findings, key=lambda f: (f.code, f.location.path, f.fingerprint))
    }
    document = {"schema": SCHEMA, "hit_rate": hit_rate, "findings": known}
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")

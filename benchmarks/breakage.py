"""Does the lint find what breaks a prefix, exactly there, and nothing else?

Plants every kind of breakage, several shapes each, into real dialogues, beside distractors that must
stay silent, and prints recall and precision per rule, the error of the promised hit rate, and the speed.

    python benchmarks/breakage.py [DIALOGUES.json] [--tools TOOLS.json] [--only KV101] [--seed 1] [--bare]
                                  [--wordings]

With --bare the log has neither session ids nor times; with --wordings a further set is planted, which was
written before the rules were looked at. DIALOGUES is a tau-bench trajectory file
(default: the sample of it in samples/).
"""

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from breakage_languages import FORMS
from breakage_languages import SHAPES as LANGUAGES
from breakage_planting import Base, Planted, Row
from breakage_silent import DISTRACTORS
from breakage_structure import SHAPES as STRUCTURE
from breakage_values import SHAPES as VALUES
from breakage_wordings import SHAPES as WORDINGS
from breakage_wordings import SILENT

from kvtool.lint.check import find
from kvtool.lint.corpus import arrival_order
from kvtool.lint.price import replayed
from kvtool.report import Finding
from kvtool.requests import Request, Source
from kvtool.tokens import PromptEncoder, load_encoder

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 32


def requests_of(rows: list[Row], bare: bool) -> list[Request]:
    """Rows as the OpenAI chat reader would give them; bare: without session ids and times."""
    return [
        Request(
            id=str(number),
            source=Source("planted.jsonl", number + 1),
            arrival=None if bare else int(row["timestamp"] * 1e6),
            session=None if bare else row.get("session_id"),
            model=row.get("model"),
            messages=row["messages"],
            tools=row.get("tools"),
        )
        for number, row in enumerate(rows)
    ]


@dataclass
class Score:
    planted: int = 0
    found: int = 0
    exact: int = 0
    false: int = 0
    worst: float = 0.0


def true_rate(rows: list[Row], encoder: PromptEncoder, bare: bool) -> float:
    requests = requests_of(rows, bare)
    return replayed(requests, arrival_order(requests), encoder, BLOCK_SIZE).tokens


def is_exact(finding: Finding, planted: Planted) -> bool:
    place = finding.location
    there = planted.places.get(place.row - 1, set())
    return (place.path, place.start, place.end) in there or (place.path, -1, -1) in there


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dialogues", nargs="?", default=str(ROOT / "samples/airline-tau-bench.json"))
    parser.add_argument("--tools", default=str(ROOT / "samples/airline-chat.jsonl"))
    parser.add_argument("--tokenizer", default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--wordings", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    text = Path(options.tools).read_text(encoding="utf-8")
    tools = json.loads(text) if options.tools.endswith(".json") else json.loads(text.splitlines()[0])["tools"]
    base = Base(
        json.loads(Path(options.dialogues).read_text(encoding="utf-8")), sorted(tools, key=str), options.seed
    )
    encoder = load_encoder(options.tokenizer)
    scores: dict[str, Score] = defaultdict(Score)
    size = seconds = 0.0
    usual = [*VALUES, *LANGUAGES, *STRUCTURE, *FORMS]
    for name, plant in WORDINGS if options.wordings else usual:
        if options.only not in name:
            continue
        planted = plant(base)
        requests = requests_of(planted.rows, options.bare)
        encoder.encode(requests)
        size += len(json.dumps(planted.rows))
        start = time.perf_counter()
        findings = find(requests, encoder, BLOCK_SIZE)
        seconds += time.perf_counter() - start
        score = scores[planted.code]
        score.planted += 1
        mine = [finding for finding in findings if finding.code == planted.code]
        others = [
            finding for finding in findings if finding.code != planted.code and finding.severity != "info"
        ]
        exact = any(is_exact(finding, planted) for finding in mine)
        score.found += bool(mine)
        score.exact += exact
        error = 1.0
        if mine and planted.truth is not None:
            error = abs(mine[0].hit_rate_if_fixed - true_rate(planted.truth, encoder, options.bare))
            score.worst = max(score.worst, error)
        for finding in [*others, *mine[1:]]:
            scores[finding.code].false += 1
        if options.verbose or not exact or others or error > 0.005 or len(mine) > 1:
            print(f"{name}: {'exact' if exact else 'found' if mine else 'MISSED'}, rate error {error:.4f}")
            for finding in findings:
                place = finding.location
                print(
                    f"    {finding.code} {finding.severity} {place.row} "
                    f"{place.path}[{place.start}:{place.end}] "
                    f"{finding.slot!r} {finding.examples[:2]!r} lost {finding.lost_tokens}"
                )
            row = mine[0].location.row - 1 if mine else min(planted.places, default=0)
            if not exact:
                print(f"    expected in row {row + 1}: {sorted(planted.places.get(row, set()))[:3]}")
    for name, make in SILENT if options.wordings else DISTRACTORS:
        if options.only not in name:
            continue
        for finding in find(requests_of(make(base), options.bare), encoder, BLOCK_SIZE):
            loud = finding.severity != "info"
            scores[finding.code].false += loud
            print(
                f"silent log '{name}': {finding.code} {finding.severity} {finding.location.path} "
                f"{finding.slot!r} {finding.examples[:2]} lost {finding.lost_tokens}"
            )
    print(f"\n{'rule':6} planted found exact false  recall precision  rate error")
    for code, score in sorted(scores.items()):
        recall = score.exact / score.planted if score.planted else 1.0
        precision = score.found / (score.found + score.false) if score.found + score.false else 1.0
        print(
            f"{code:6} {score.planted:7} {score.found:5} {score.exact:5} {score.false:5} "
            f"{recall:7.2f} {precision:9.2f} {score.worst:11.4f}"
        )
    planted_all = sum(score.planted for score in scores.values())
    exact_all = sum(score.exact for score in scores.values())
    found_all = sum(score.found for score in scores.values())
    false_all = sum(score.false for score in scores.values())
    print(
        f"all: recall {exact_all / max(planted_all, 1):.3f}, "
        f"precision {found_all / max(found_all + false_all, 1):.3f}, "
        f"{seconds / max(size / 1e6, 1e-9):.2f} s per MB"
    )


if __name__ == "__main__":
    main()

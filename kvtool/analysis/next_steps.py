"""What to do next, as commands that can be pasted: an analysis' advice turned into steps."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from kvtool.page import Step

READ: Final = ("--format", "--map", "--tokenizer", "--chat-template")
COUNTED: Final = ("--where", "--session-gap", "--share-tenants")

Options = Sequence[tuple[str, str]]
"""(--name, value) in turn; a flag has the value ""."""

GAIN = 0.01
"""Points of hit rate below which fixing prompts is not the next thing to do."""


def next_steps(document: Mapping[str, Any], logs: Sequence[str], options: Options) -> list[Step]:
    """Steps for the document of an analysis. options: how its logs are read."""
    words = {piece["code"]: str(piece["text"]) for piece in document["advice"]}
    rate = document["hit_rate"]
    readable = document["tokenizer"]["chat_template"] is not None
    fixes = readable and rate["normalized_tokens"] - rate["tokens"] >= GAIN
    count = given(options, *READ, *COUNTED)
    steps = []
    if "incomplete-log" in words:
        steps.append(Step("Log whole prompts", words["incomplete-log"]))
    if fixes:
        steps.append(
            Step(
                "Apply the safe fixes",
                words.get("fix-prompts", ""),
                command(
                    "normalize",
                    *logs,
                    *given(options, *READ, "--strict"),
                    "-o",
                    target(logs),
                    "--rules-out",
                    "normalizer.json",
                ),
            )
        )
    if readable:
        gate = rate["normalized_tokens"] if fixes else rate["tokens"]
        steps.append(
            Step(
                "Keep it that way",
                "In CI, fail when a prompt change breaks the prefix again.",
                command(
                    "lint",
                    *logs,
                    *given(options, "--format", "--tokenizer", "--chat-template"),
                    "--min-hit-rate",
                    f"{int(90 * gate)}%",
                ),
            )
        )
    if "capacity" in words:
        steps.append(
            Step(
                "Choose a cache size and policy",
                words["capacity"],
                command(
                    "simulate", *logs, *count, "--capacity", "5%", "--capacity", "10%", "--policy", "all"
                ),
            )
        )
    if "block-size" in words:
        best = next(piece for piece in document["advice"] if piece["code"] == "block-size")
        size = str(best["evidence"]["best"]["block_size"])
        steps.append(
            Step(
                "Change the block size",
                words["block-size"],
                command("analyze", *logs, *count, "--block-size", size),
            )
        )
    if "routing" in words:
        steps.append(
            Step(
                "Route for reuse",
                words["routing"],
                command("simulate", *logs, *count, "--replicas", "4", "--routing", "prefix"),
            )
        )
    if readable and document["hot_prefixes"]:
        source = [part for log in logs for part in ("--logs", log)]
        kept = given(options, "--format", "--map", "--chat-template", "--share-tenants")
        steps += [
            Step(
                "Prewarm the hot prefixes",
                "Compute what many requests share once, and store it as verified shards.",
                command("prewarm", *source, *kept, "--budget", "2GiB", "--out", "shards"),
            ),
            Step(
                "Serve them",
                "An OpenAI-compatible server that starts with the hot prefixes in its cache.",
                "kvtool serve --shards shards" + (" --normalizer normalizer.json" if fixes else ""),
            ),
        ]
    return steps


def command(name: str, *arguments: str) -> str:
    """A kvtool command line for a shell; what looks like an option and is a file is told apart."""
    return " ".join(["kvtool", name, *(shlex.quote(argument) for argument in arguments)])


def target(logs: Sequence[str]) -> str:
    """Where normalize would write: beside one file, or a folder for several."""
    path = PurePath(logs[0])
    if len(logs) > 1 or not path.suffix or any(character in path.name for character in "*?["):
        return "normalized"
    stem, *suffixes = path.name.split(".")
    return ".".join([stem or "log", "normalized", *suffixes])


def given(options: Options, *names: str) -> list[str]:
    """Those of `options` that another command takes too, as its arguments."""
    return [part for name, value in options if name in names for part in (name, value) if part]

"""How fast are logs read, and does memory stay bounded?

Compares, in one run: analyze against the bare tokenizer on the same rendered prompts; analyze of a
block-hash trace against DuckDB reading the same file; time and peak memory over 1x, 10x, 100x the rows.

    python benchmarks/ingest.py [--chat LOG] [--trace TRACE] [--times 1 10 100] [--repeat 3]

CHAT defaults to the tau-bench sample, TRACE to the Mooncake sample. Every figure is the best of --repeat,
each in its own process that has imported what it measures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PROLOGUE = """
import json, resource, sys, time
path = sys.argv[1]
def done(start, **figures):
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "peak": peak, **figures}))
"""
IMPORTS = """
from kvtool.analysis.analyze import AnalyzeConfig, analyze
from kvtool.logs.reader import open_log
from kvtool.logs.traces import trace_batches
from kvtool.tokens import load_encoder
encoder = load_encoder()
"""
ANALYZE = (
    PROLOGUE
    + IMPORTS
    + """
start = time.perf_counter()
workload = analyze(open_log([path]), lambda: encoder, AnalyzeConfig(), lambda seen: None).workload
done(start, requests=workload.requests, tokens=int(workload.prompt_tokens.sum()))
"""
)
READ = (
    PROLOGUE
    + IMPORTS
    + """
start = time.perf_counter()
log = open_log([path])
batches = trace_batches(log)
done(start, requests=sum(map(len, batches)) if batches is not None else sum(1 for _ in log))
"""
)
BARE_TOKENIZER = (
    PROLOGUE
    + IMPORTS
    + """
from tokenizers import Tokenizer
from kvtool import embedded
bare = Tokenizer.from_file(str(embedded.tokenizer_directory() / "tokenizer.json"))
texts = [encoder.render(request).text for request in open_log([path])]
start = time.perf_counter()
tokens = sum(len(one.ids) for at in range(0, len(texts), 256)
             for one in bare.encode_batch(texts[at:at + 256], add_special_tokens=False))
done(start, requests=len(texts), tokens=tokens)
"""
)
DUCKDB = (
    PROLOGUE
    + """
import duckdb
duckdb.sql("set enable_progress_bar = false")
start = time.perf_counter()
table = duckdb.sql(f"select * from read_json_auto('{path}')").to_arrow_table()
done(start, requests=len(table))
"""
)


def measured(code: str, path: Path, repeat: int) -> dict[str, Any]:
    """The fastest of `repeat` runs, each in a process of its own."""
    runs = []
    for _ in range(repeat):
        command = [sys.executable, "-c", code, str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        runs.append(json.loads(result.stdout))
    return min(runs, key=lambda run: run["seconds"])


def show(name: str, run: dict[str, Any]) -> None:
    rate = f"{run['requests'] / run['seconds']:>12,.0f} requests/s"
    tokens = f"{run['tokens'] / run['seconds']:>14,.0f} tokens/s" if "tokens" in run else " " * 23
    print(f"  {name:<28}{run['seconds']:>9.3f} s {rate} {tokens} {run['peak'] / 2**20:>8,.0f} MiB")


def copies(path: Path, times: int, folder: Path) -> Path:
    """The lines of a JSON Lines file, `times` over."""
    target = folder / f"{times}x-{path.name}"
    data = path.read_bytes()
    data += b"" if data.endswith(b"\n") else b"\n"
    with target.open("wb") as out:
        for _ in range(times):
            out.write(data)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chat", type=Path, default=ROOT / "samples/airline-tau-bench.json")
    parser.add_argument("--trace", type=Path, default=ROOT / "samples/mooncake-conversation.jsonl")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    print(f"chat log {options.chat.name}")
    bare = measured(BARE_TOKENIZER, options.chat, options.repeat)
    ours = measured(ANALYZE, options.chat, options.repeat)
    show("bare tokenizer, all prompts", bare)
    show("kvtool analyze, all of it", ours)
    assert bare["requests"] == ours["requests"] and bare["tokens"] == ours["tokens"], "not the same prompts"
    print(f"  ratio {ours['seconds'] / bare['seconds']:.2f}x")

    with tempfile.TemporaryDirectory() as folder:
        for times in options.times:
            path = copies(options.trace, times, Path(folder))
            print(f"trace {options.trace.name}, {times}x the rows, {path.stat().st_size / 2**20:,.1f} MiB")
            base = measured(DUCKDB, path, options.repeat)
            read = measured(READ, path, options.repeat)
            whole = measured(ANALYZE, path, options.repeat)
            show("DuckDB reads the file", base)
            show("kvtool reads the file", read)
            show("kvtool analyze, all of it", whole)
            assert base["requests"] == read["requests"] == whole["requests"], "not the same rows"
            print(f"  ratio {whole['seconds'] / base['seconds']:.2f}x")
            path.unlink()


if __name__ == "__main__":
    main()

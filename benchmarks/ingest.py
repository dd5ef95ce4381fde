"""How fast are logs read, and does memory stay bounded?

Compares, in one run: analyze against the bare tokenizer on the same rendered prompts; analyze of a
block-hash trace against DuckDB reading the same file; time and peak memory over 1x, 10x, 100x the rows; and,
where asked for, peak memory over many short requests and over much text that no prompt shares.

    python benchmarks/ingest.py [--chat LOG] [--trace TRACE] [--times 1 10 100] [--repeat 3]
    python benchmarks/ingest.py --times --short 1e6 5e6 --distinct 1 4 20

CHAT defaults to the tau-bench sample, TRACE to the Mooncake sample. --short: chat requests of about 100
tokens, each with an id, two of three with a session of their own; --distinct: GB of prompts of 4,000 letters.
Both are written to $TMPDIR and read with --tokenizer bytes: what a tokenizer adds is its cache, which is
bounded. Every figure is the best of --repeat, each in its own process that has imported what it measures.
On a busy machine compare CPU seconds.
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
begun = time.process_time()
def done(start, **figures):
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - begun, "peak": peak, **figures}))
"""
IMPORTS = """
from kvtool.analysis.analyze import AnalyzeConfig, analyze
from kvtool.logs.reader import open_log
from kvtool.logs.traces import trace_batches
from kvtool.tokens import load_encoder
encoder = load_encoder(*sys.argv[2:])
"""
ANALYZE = (
    PROLOGUE
    + IMPORTS
    + """
begun, start = time.process_time(), time.perf_counter()
workload = analyze(open_log([path]), lambda: encoder, AnalyzeConfig(), lambda seen: None).workload
done(start, requests=workload.requests, tokens=int(workload.prompt_tokens.sum()))
"""
)
READ = (
    PROLOGUE
    + IMPORTS
    + """
begun, start = time.process_time(), time.perf_counter()
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
begun, start = time.process_time(), time.perf_counter()
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
begun, start = time.process_time(), time.perf_counter()
table = duckdb.sql(f"select * from read_json_auto('{path}')").to_arrow_table()
done(start, requests=len(table))
"""
)


SHORT = """
import json, random, sys
chance = random.Random(1)
words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
systems = [f"You are helper {number}. " + " ".join(chance.choices(words, k=40)) for number in range(50)]
with open(sys.argv[1], "w") as out:
    for row in range(int(float(sys.argv[2]))):
        own = f"s-{chance.getrandbits(128):032x}" if row % 3 else f"u{row % 1000}"
        messages = [{"role": "system", "content": systems[row % 50]},
                    {"role": "user", "content": " ".join(chance.choices(words, k=12))}]
        out.write(json.dumps({"timestamp": 1700000000 + row / 20, "id": f"req-{chance.getrandbits(128):032x}",
                              "session_id": own, "model": "m", "messages": messages}) + "\\n")
"""
DISTINCT = """
import random, sys
chance = random.Random(7)
words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(50_000)]
pool = " ".join(chance.choices(words, k=4_000_000))
row = written = 0
with open(sys.argv[1], "w") as out:
    while written < float(sys.argv[2]) * 1e9:
        at = row * 7919 * 31 % (len(pool) - 4000)
        prompt = f"{row} {pool[at:at + 4000]}"
        written += out.write(f'{{"timestamp": {1700000000 + row}, "prompt": "{prompt}"}}\\n')
        row += 1
"""


def measured(code: str, path: Path, repeat: int, *arguments: str) -> dict[str, Any]:
    """The fastest of `repeat` runs, each in a process of its own."""
    runs = []
    for _ in range(repeat):
        command = [sys.executable, "-c", code, str(path), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        runs.append(json.loads(result.stdout))
    return min(runs, key=lambda run: run["seconds"])


def show(name: str, run: dict[str, Any]) -> None:
    rate = f"{run['requests'] / run['seconds']:>12,.0f} requests/s"
    tokens = f"{run['tokens'] / run['seconds']:>14,.0f} tokens/s" if "tokens" in run else " " * 23
    times = f"{run['seconds']:>9.3f} s {run['cpu']:>9.3f} s CPU"
    print(f"  {name:<28}{times} {rate} {tokens} {run['peak'] / 2**20:>8,.0f} MiB", flush=True)


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return f"{ours['seconds'] / theirs['seconds']:.2f}x, of CPU {ours['cpu'] / theirs['cpu']:.2f}x"


def long_logs(kind: str, maker: str, sizes: list[float]) -> None:
    """Peak memory of analyze over made-up logs of several sizes."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.jsonl"
            subprocess.run([sys.executable, "-c", maker, str(path), str(size)], check=True)
            print(f"{kind}, {size:g}: {path.stat().st_size / 1e9:.2f} GB")
            show("kvtool analyze, no lint", measured(ANALYZE, path, 1, "bytes"))


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
    parser.add_argument("--times", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--short", type=float, nargs="*", default=[])
    parser.add_argument("--distinct", type=float, nargs="*", default=[])
    options = parser.parse_args()
    long_logs("short requests", SHORT, options.short)
    long_logs("GB of distinct text", DISTINCT, options.distinct)
    if not options.times:
        return

    print(f"chat log {options.chat.name}")
    bare = measured(BARE_TOKENIZER, options.chat, options.repeat)
    ours = measured(ANALYZE, options.chat, options.repeat)
    show("bare tokenizer, all prompts", bare)
    show("kvtool analyze, all of it", ours)
    assert bare["requests"] == ours["requests"] and bare["tokens"] == ours["tokens"], "not the same prompts"
    print(f"  ratio {ratio(ours, bare)}")

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
            print(f"  ratio {ratio(whole, base)}")
            path.unlink()


if __name__ == "__main__":
    main()

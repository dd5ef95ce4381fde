"""Prewarm against plain transformers, plain writes and plain reads, all in one run on one machine.

    python benchmarks/prewarm.py [LOG] [--model embedded] [--budget 100MB] [--rounds 3]

Times are CPU seconds, the best of the rounds, of the same tokens and the same bytes: plain transformers
prefills each chain of the plan from its branch on over a copy of its parent's cache, as a careful user
would. LOG defaults to the sample chat log with its breakage removed by `kvtool normalize`.
"""

import argparse
import copy
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from kvtool import embedded
from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.prewarm import PrewarmConfig, PrewarmResult, prewarm
from kvtool.engine.schedule import cut_pieces
from kvtool.engine.storage.codec import block_bytes
from kvtool.engine.storage.codecs import CODECS, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.logs.reader import open_log
from kvtool.options import Size

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 32


def best(rounds: int, work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> tuple[float, Any]:
    """(fewest CPU seconds of `work`, its last result); `before` is not counted."""
    fewest, result = float("inf"), None
    for _ in range(rounds):
        before()
        started = time.process_time()
        result = work()
        fewest = min(fewest, time.process_time() - started)
    return fewest, result


def plain_prefill(plan: Plan, plain: Any) -> int:
    """Every piece of the plan through transformers' own cache; the number of tokens computed."""
    caches: dict[int, Any] = {}  # by the row at which they end
    ids = torch.from_numpy(plan.tokens.astype(np.int64))
    children = np.bincount(plan.parent + 1, minlength=len(plan) + 1)[1:]
    computed = 0
    with torch.inference_mode():
        for piece in cut_pieces(plan):
            above = piece.parent
            if above < 0:
                cache = transformers.DynamicCache()
            else:
                children[above] -= 1
                cache = copy.deepcopy(caches[above]) if children[above] else caches.pop(above)
            tokens = ids[piece.first : piece.last].reshape(1, -1)
            plain(tokens, None, None, cache, use_cache=True, logits_to_keep=1)  # its name changed
            computed += tokens.shape[1]
            caches[piece.last - 1] = cache
    return computed


def normalized_sample(folder: Path) -> Path:
    """The sample log without its planted breakage."""
    from kvtool.commands import normalize

    out = folder / "normalized.jsonl"
    normalize.run(normalize.Config((str(ROOT / "samples/airline-chat.jsonl"),), output=out))
    return out


def measure(codec: str, log: Path, model: Model, plain: Any, budget: int, rounds: int, out: Path) -> None:
    workload = build_workload(open_log([str(log)]), model.encoder, BLOCK_SIZE)
    shape, made = Identity.of_model(model, BLOCK_SIZE).shape, load_codec({"codec": codec})
    plan = make_plan(
        workload,
        PlanConfig(budget),
        lambda depth: block_bytes(made, shape, depth == 0),
        model.config.max_positions,
    )

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)

    reference, tokens = best(rounds, lambda: plain_prefill(plan, plain))
    ours, result = best(rounds, lambda: prewarm(plan, model, out, PrewarmConfig(codec)), clear)
    assert isinstance(result, PrewarmResult) and result.tokens_computed == plan.forecast.tokens
    files = sorted(out.glob("*.safetensors"))
    data = b"".join(file.read_bytes() for file in files)

    def write() -> None:
        with (out / "plain").open("wb") as handle:
            handle.write(data)
            os.fsync(handle.fileno())

    def load() -> None:
        shards = open_shards(out)
        for row in shards.rows:
            shards.read_block(row.hash)
        shards.close()

    written, _ = best(rounds, write)
    read, _ = best(rounds, lambda: [file.read_bytes() for file in files])
    loaded, _ = best(rounds, load)
    size = len(data) / 1e6
    print(f"{codec}: {len(plan)} blocks, {size:.1f} MB, {result.bits_per_element:.3f} bits per element")
    print(
        f"  tokens computed    {plan.forecast.tokens:,} of {plan.forecast.tokens_unshared:,} without sharing"
    )
    print(f"  plain transformers {tokens / reference:8.0f} tokens/s  ({tokens:,} tokens)")
    print(
        f"  prewarm            {plan.forecast.tokens / ours:8.0f} tokens/s  {ours / reference:.2f}x the time"
    )
    print(f"  plain write        {size / max(written, 1e-9):8.0f} MB/s")
    print(f"  plain read         {size / max(read, 1e-9):8.0f} MB/s")
    print(f"  verified load      {size / max(loaded, 1e-9):8.0f} MB/s  decoded to {model.dtype_name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--budget", default="100MB", type=lambda text: Size().convert(text, None, None))
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    folder = embedded.model_directory() if options.model == "embedded" else Path(options.model)
    model = load_model(options.model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype).eval()
    with tempfile.TemporaryDirectory() as scratch:
        log = options.log or normalized_sample(Path(scratch))
        for codec in CODECS.names():
            measure(codec, log, model, plain, options.budget, options.rounds, Path(scratch) / codec)


if __name__ == "__main__":
    main()

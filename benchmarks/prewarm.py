"""Prewarm against plain transformers, plain writes and plain reads, all in one run on one machine.

    python benchmarks/prewarm.py [LOG] [--sharing LOG] [--model embedded] [--budget 60MB] [--rounds 2]

Times are CPU seconds, the best of the rounds, of the same tokens and the same bytes: plain transformers
prefills each chain of the plan from its branch on over a copy of its parent's cache, as a careful user
would. LOG defaults to the sample chat log with its breakage removed by `kvtool normalize`. --sharing: how
many tokens a whole log's plan computes, of those that its requests would compute each for itself.
KL by codec and for `auto`: benchmarks/codecs.py. llama.cpp: benchmarks/prewarm_llama.py.
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
from kvtool.engine.storage.codec import block_bytes, decode_block, encode_block, load_codec, stored_parts
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import block_checksum
from kvtool.engine.storage.shards import ShardSet, open_shards
from kvtool.engine.storage.writer import Planned, write_shard
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
    return max(fewest, 1e-9), result


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


def plan_for(log: Path, model: Model, budget: int | None) -> Plan:
    workload = build_workload(open_log([str(log)]), model.encoder, BLOCK_SIZE)
    shape, raw = Identity.of_model(model, BLOCK_SIZE).shape, load_codec({"codec": "raw"})
    limits = PlanConfig({} if budget is None else {"disk": budget})
    return make_plan(
        workload, limits, lambda depth: block_bytes(raw, shape, depth == 0), model.config.max_positions
    )


def compute(plan: Plan, model: Model, plain: Any, rounds: int, out: Path) -> None:
    """Tokens a second, beside plain transformers."""
    reference, tokens = best(rounds, lambda: plain_prefill(plan, plain))
    ours, result = best(
        rounds,
        lambda: prewarm(plan, model, out, PrewarmConfig("raw")),
        lambda: shutil.rmtree(out, ignore_errors=True),
    )
    assert isinstance(result, PrewarmResult) and result.tokens_computed == plan.forecast.tokens
    print(f"{len(plan)} blocks: {plan.forecast.tokens:,} tokens of {plan.forecast.tokens_unshared:,}")
    print(f"  plain transformers {tokens / reference:8.0f} tokens/s  ({tokens:,} tokens)")
    times = f"{ours / reference:.2f}x the time, files included"
    print(f"  prewarm, raw       {plan.forecast.tokens / ours:8.0f} tokens/s  {times}")


def store(name: str, shards: ShardSet, rounds: int, folder: Path) -> None:
    """One line: the blocks in another codec, written and loaded, beside plain files of the same bytes."""
    shape, codec = shards.manifest.identity.shape, load_codec({"codec": name})
    blocks = [(row, shards.read_block(row.hash)) for row in shards.rows]

    def encode() -> list[bytes]:
        return [encode_block(codec, shape, block, row.depth == 0) for row, block in blocks]

    encoding, data = best(rounds, encode)
    parts = [
        stored_parts(codec, shape, row.depth == 0, len(own))
        for (row, _), own in zip(blocks, data, strict=True)
    ]
    planned = [Planned(row.hash, tuple(part)) for (row, _), part in zip(blocks, parts, strict=True)]
    path = folder / "block.safetensors"

    def write() -> None:
        with write_shard(path, planned) as writer:
            for (row, _), own in zip(blocks, data, strict=True):
                writer.append(own)
                block_checksum(row.hash, own)

    def write_plain() -> None:
        with (folder / "plain").open("wb") as handle:
            for own in data:
                handle.write(own)
            handle.flush()
            os.fsync(handle.fileno())

    def load() -> None:
        with path.open("rb") as handle:
            handle.seek(path.stat().st_size - sum(map(len, data)))
            for (row, _), own in zip(blocks, data, strict=True):
                stored = bytearray(handle.read(len(own)))
                block_checksum(row.hash, stored)
                decode_block(codec, shape, stored, row.depth == 0)

    written, _ = best(rounds, write)
    plain_written, _ = best(rounds, write_plain)
    read, _ = best(rounds, (folder / "plain").read_bytes)
    loaded, _ = best(rounds, load)
    size = sum(map(len, data)) / 1e6
    bits = 8e6 * size / (len(blocks) * shape.elements)
    print(
        f"  {name:9}{bits:6.2f} bits {size:6.1f} MB  encode {size / encoding:5.0f} MB/s  "
        f"write {size / written:5.0f} (plain {size / plain_written:5.0f})  "
        f"load {size / loaded:5.0f} (plain read {size / read:5.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path)
    parser.add_argument("--sharing", type=Path)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--budget", default="60MB", type=lambda text: Size().convert(text, None, None))
    parser.add_argument("--rounds", default=2, type=int)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    folder = embedded.model_directory() if options.model == "embedded" else Path(options.model)
    model = load_model(options.model)
    if options.sharing:
        forecast = plan_for(options.sharing, model, None).forecast
        print(
            f"{options.sharing.name}: {forecast.tokens:,} tokens of {forecast.tokens_unshared:,} "
            f"without sharing ({forecast.tokens / forecast.tokens_unshared:.3f})"
        )
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype).eval()
    with tempfile.TemporaryDirectory() as scratch:
        log = options.log or normalized_sample(Path(scratch))
        shards = Path(scratch) / "shards"
        compute(plan_for(log, model, options.budget), model, plain, options.rounds, shards)
        for name in CODECS.names():
            store(name, open_shards(shards), options.rounds, Path(scratch))


if __name__ == "__main__":
    main()

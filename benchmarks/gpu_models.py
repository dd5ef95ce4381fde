"""Models of real shapes with random weights, and how fast they prefill, decode and find their prefixes."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_kernels import Card, attempt
from gpu_served import Served, free_memory, planned_blocks, together

from kvtool.blocks import namespace
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.fused import fuse
from kvtool.engine.compute.load import make_paged
from kvtool.engine.compute.model import Model, ModelConfig
from kvtool.engine.compute.runner import Chunk, Runner

SHAPES: dict[str, dict[str, Any]] = {
    "1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
        "vocab_size": 128_256,
    },
    "8B": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128_256,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "tie_word_embeddings": True,
        "vocab_size": 500,
    },
}
"""Llama 3.2 1B, Llama 3.1 8B, and one for rehearsals."""

POSITIONS = 65_536
SPARE = 3 << 30
"""Bytes left for activations, graphs and torch itself."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """The real thing, or a rehearsal on a CPU: lengths are divided, models are tiny."""

    device: torch.device
    divide: int = 1

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return 32

    def shape(self, name: str) -> str:
        """The model to take for `name`."""
        return name if self.divide == 1 else "tiny"

    def tokens(self, count: int) -> int:
        """A length, in whole blocks: one first, one full, one last at least."""
        return max(count // self.divide // self.block, 3) * self.block

    def few(self, count: int) -> int:
        """A number of steps or rounds."""
        return count if self.divide == 1 else min(count, 4)


def random_module(shape: str, device: torch.device) -> Any:
    """A Llama of that shape with random weights in bf16."""
    config = transformers.LlamaConfig(
        max_position_embeddings=POSITIONS, bos_token_id=1, eos_token_id=None, pad_token_id=0, **SHAPES[shape]
    )
    torch.manual_seed(0)
    with torch.device(device):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return module.eval().requires_grad_(False)


def paged(module: Any, shape: str, device: torch.device) -> Model:
    """The same module over block tables, as `load_model` makes it."""
    fuse(module, exact=False)
    return Model(
        name=shape,
        module=module,
        config=ModelConfig(make_paged(module, shape), SHAPES[shape]["vocab_size"], POSITIONS),
        fingerprint={},
        device=device,
        dtype=torch.bfloat16,
        stop_tokens=frozenset(),
        prompt_encoder=None,
    )


def token_bytes(shape: str) -> int:
    """Bytes of keys and values of a token in bf16."""
    fields = SHAPES[shape]
    width = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    return int(4 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * width)


def weight_bytes(shape: str) -> int:
    """Bytes of the weights in bf16, near enough to plan memory."""
    fields = SHAPES[shape]
    hidden, middle = fields["hidden_size"], fields["intermediate_size"]
    layer = 3 * hidden * middle + 3 * hidden * hidden
    heads = 1 if fields.get("tie_word_embeddings") else 2
    return int(2 * (fields["num_hidden_layers"] * layer + heads * fields["vocab_size"] * hidden))


def ids(shape: str, count: int, seed: int) -> np.ndarray:
    """Random token ids."""
    vocab = SHAPES[shape]["vocab_size"]
    return np.random.default_rng(seed).integers(10, vocab - 10, count).astype(np.uint32)


def wait(device: torch.device) -> float:
    """The clock, once the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def decode(scale: Scale, card: Card) -> Iterator[Row]:
    """Decoding, scheduler and all: a step over the time that reading all weights once must take."""
    shape = scale.shape("1B")
    model = paged(random_module(shape, scale.device), shape, scale.device)
    weights = sum(parameter.nbytes for parameter in model.module.parameters())
    context, steps = scale.tokens(1024), scale.few(128)

    def measure(batch: int, codec: str) -> Row:
        blocks = batch * (-(-(context + steps) // scale.block) + 1)
        served = Served(model, scale.block, blocks, chunk=scale.tokens(8192), running=batch, codec=codec)
        for once in range(2):  # the first round compiles and captures
            asked = [served.ask(ids(shape, context, 100 * once + row), steps) for row in range(batch)]
            served.run()
        served.close()
        step, rate = together([one.watch.times for one in asked])
        return {"step": step, "tokens_per_s": rate, "of_weight_floor": step / (weights / card.copy)}

    most = 32 if scale.divide == 1 else 2
    for batch, codec in ((1, "raw"), (most, "raw"), (most // 4 or 1, "raw"), (most, "int8"), (most, "int4")):
        yield attempt(
            {"model": shape, "blocks": codec, "batch": batch, "context": context},
            partial(measure, batch, codec),
        )


def peers(scale: Scale, _: Card) -> Iterator[Row]:
    """transformers on the same model: `generate` alone, its prefill taken off, and its continuous batching.

    That one attends by SDPA with a mask where flash-attn is not installed, and without graphs of its own.
    """
    shape = scale.shape("1B")
    module = random_module(shape, scale.device)
    module.set_attn_implementation("sdpa")
    context, steps = scale.tokens(1024), scale.few(128)
    prompt = torch.from_numpy(ids(shape, context, 0).astype(np.int64))[None].to(scale.device)

    def generate(count: int) -> float:
        begun = wait(scale.device)
        module.generate(prompt, max_new_tokens=count, do_sample=False, use_cache=True)
        return wait(scale.device) - begun

    def alone() -> Row:
        generate(2)
        taken = [generate(count) for count in (1, 1 + steps)]
        return {"tokens_per_s": steps / (taken[1] - taken[0]), "prefill": taken[0]}

    yield attempt({"peer": "generate", "batch": 1}, alone)
    batch = 32 if scale.divide == 1 else 2

    def batching() -> Row:
        answers = module.generate_batch(
            inputs=[ids(shape, context, row).tolist() for row in range(batch)],
            generation_config=transformers.GenerationConfig(
                max_new_tokens=steps, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                max_memory_percent=0.5 if scale.divide == 1 else 0.02
            ),
            record_timestamps=True,
        )
        times = [each.timestamps for each in answers.values()]
        assert len(times) == batch and all(len(each) == steps for each in times)
        step, rate = together(times)
        return {"step": step, "tokens_per_s": rate}

    yield attempt({"peer": "continuous batching", "batch": batch}, batching)


def prefill(scale: Scale, card: Card) -> Iterator[Row]:
    """One chunk of a prompt through the model: share of the card's measured matrix rate."""
    shape = scale.shape("8B" if free_memory(scale.device) > weight_bytes("8B") + SPARE else "1B")
    model = paged(random_module(shape, scale.device), shape, scale.device)
    fields = SHAPES[shape]
    heads = fields["num_attention_heads"]
    width = fields.get("head_dim") or fields["hidden_size"] // heads
    head = model.module.get_output_embeddings().weight.numel()
    tied = fields.get("tie_word_embeddings")
    matrices = sum(each.numel() for each in model.module.parameters()) - (1 if tied else 2) * head

    def measure(tokens: int, start: int) -> Row:
        arena = Arena(model, (start + tokens) // scale.block, scale.block)
        runner = Runner(model, arena, True)
        slots = list(range(arena.slots))
        prompt = ids(shape, start + tokens, 0)
        if start:
            runner.step([Chunk(prompt[:start], 0, slots, False)])
        times = []
        for _ in range(scale.few(7)):
            begun = wait(scale.device)
            runner.step([Chunk(prompt[start:], start, slots, True)])
            times.append(wait(scale.device) - begun)
        took = statistics.median(times[2:])
        pairs = tokens * start + tokens * (tokens + 1) // 2
        work = 2 * tokens * matrices + 4 * fields["num_hidden_layers"] * heads * width * pairs
        return {"seconds": took, "tokens_per_s": tokens / took, "of_matrix_rate": work / took / card.matrix}

    for chunk, before in ((8192, 0), (8192, 8192), (2048, 0)):
        tokens, start = scale.tokens(chunk), scale.tokens(before) if before else 0
        yield attempt({"model": shape, "tokens": tokens, "over": start}, partial(measure, tokens, start))


def first_token(scale: Scale, _: Card) -> Iterator[Row]:
    """Seconds to the first token of a known prefix and 64 new tokens, by where the prefix is."""
    shape = scale.shape("8B" if free_memory(scale.device) > weight_bytes("8B") + SPARE else "1B")
    model = paged(random_module(shape, scale.device), shape, scale.device)
    for length in (8192, 2048, 32_768) if scale.divide == 1 else (8192,):
        prefix = scale.tokens(length)
        blocks = prefix // scale.block + 2 * (64 // scale.block)
        size = blocks * scale.block * token_bytes(shape)
        if size > free_memory(scale.device) - SPARE // 2:
            yield {"model": shape, "prefix": prefix, "cold": "no room on this card"}
            continue
        for codec in ("raw", "int8", "int4") if length == 8192 else ("raw",):
            row: Row = {"model": shape, "prefix": prefix, "device": codec}
            places = ("host", "disk", "disk int4") if codec == "raw" else ("host", "disk")
            for place in places:
                measure = partial(_by_tier, model, shape, scale, prefix, blocks, codec, place)
                row = attempt(row, measure)
            for place in ("resident", *places):
                if place in row:
                    row[f"x {place}"] = row["cold"] / row[place]
            yield row


def _by_tier(
    model: Model, shape: str, scale: Scale, prefix: int, blocks: int, codec: str, place: str
) -> dict[str, float]:
    """Medians of rounds: cold; resident; and, after another prompt took its place, from `place`."""
    found: dict[str, list[float]] = {"cold": [], "resident": [], place: []}
    below = "int4" if place == "disk int4" else codec
    with tempfile.TemporaryDirectory(dir=".") as folder:
        served = Served(
            model,
            scale.block,
            blocks,
            chunk=min(prefix, scale.tokens(8192)) + 64,
            running=1,
            codec=codec,
            below=below,
            host=blocks + 8 if place == "host" else 0,
            disk=(Path(folder), blocks + 8) if place != "host" else None,
        )
        for number in range(3 if scale.divide == 1 else 2):  # the first one compiles
            trunk = ids(shape, prefix, 10 * number)
            new = [ids(shape, 64, 10 * number + tail) for tail in range(1, 4)]
            found["cold"].append(served.answer(np.concatenate([trunk, new[0]])).first)
            found["resident"].append(served.answer(np.concatenate([trunk, new[1]])).first)
            served.answer(ids(shape, prefix + 64, 10 * number + 5))
            if served.area is not None:
                served.forget_pages()
            asked = served.answer(np.concatenate([trunk, new[2]]))
            assert asked.request.cached == prefix, f"{asked.request.cached} of {prefix} tokens found"
            found[place].append(asked.first)
        served.close()
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def sessions(scale: Scale, _: Card) -> Iterator[Row]:
    """20 sessions, 8K shared and 16K own tokens: all at once, then a second turn of 64 tokens, one by one.

    A session that does not share finds its own history. `recomputed` is the second turn without any cache.
    """
    count, answer = (20, 256) if scale.divide == 1 else (2, 12)  # all must decode together for a while
    shared, own, planned = scale.tokens(8192), scale.tokens(16_384), scale.tokens(2048)
    total = shared + own + planned
    shape = scale.shape("1B")
    for name in ("8B", "1B"):
        need = weight_bytes(name) + count * total * token_bytes(name) + SPARE
        if scale.divide == 1 and need < free_memory(scale.device):
            shape = name
            break
    model = paged(random_module(shape, scale.device), shape, scale.device)
    room = int(free_memory(scale.device) - SPARE)
    trunk = ids(shape, shared, 0)
    mine = [ids(shape, own, 1 + number) for number in range(count)]

    def measure(sharing: bool, codec: str) -> Row:
        each = (own + planned) if sharing else total
        blocks = (count * each + (shared if sharing else 0)) // scale.block + count
        served = Served(model, scale.block, blocks, chunk=scale.tokens(8192), running=count, codec=codec)
        roots = [namespace("gpu", "" if sharing else str(number)) for number in range(count)]
        served.answer(ids(shape, scale.tokens(2048), 99))  # compiles
        served.scheduler.pool.clear()
        asked = [
            served.ask(np.concatenate([trunk, mine[number]]), answer, roots[number])
            for number in range(count)
        ]
        served.run()
        in_use = blocks - served.scheduler.pool.device.free()
        kept = sum(tensor.nbytes for tensor in _tensors(served))
        turns: list[float] = []
        grown: list[np.ndarray] = []
        for number, one in enumerate(asked):
            said = np.array(one.request.tokens, np.uint32)
            grown.append(np.concatenate([said, ids(shape, 64, 500 + number)]))
            turns.append(served.answer(grown[-1], roots[number]).first)
        again = [
            served.answer(prompt, namespace("gpu", f"again {number}")).first
            for number, prompt in enumerate(() if sharing else grown[:3])
        ]
        planned_for = planned_blocks(model, scale.block, codec, scale.tokens(8192), room) * scale.block
        step, rate = together([one.watch.times for one in asked])
        served.close()
        used = in_use * kept // blocks
        return {
            "first": statistics.median(one.first for one in asked),
            "second_turn": statistics.median(turns),
            **({"recomputed": statistics.median(again)} if again else {}),
            "step": step,
            "tokens_per_s": rate,
            "used_bytes": used,
            "used_share": used / room,
            "sessions_that_fit": (planned_for - (shared if sharing else 0)) // each,
        }

    # Memory is planned for answers of 2,048 tokens; fewer are decoded, for the minutes that this may take.
    for sharing, codec in ((False, "raw"), (True, "raw"), (True, "int4"), (True, "int8")):
        yield attempt({"model": shape, "sharing": sharing, "blocks": codec}, partial(measure, sharing, codec))


def _tensors(served: Served) -> list[torch.Tensor]:
    """What an arena keeps blocks in."""
    raw = [tensor for pair in served.arena.stacks for tensor in pair]
    coded = getattr(served.arena, "quantized", [])
    return raw + [tensor for blocks in coded for tensor in blocks.tensors()]

"""The layer profile of a model: what few bits cost in each layer's keys and values, measured once and kept.

It is a property of the model more than of the text: on two texts the ranks of the layers agree. So the text
is fixed, which also makes two machines with different logs choose the same layers.
"""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import fingerprint
from kvtool.embedded import cache_directory
from kvtool.engine.calibration import TEXT
from kvtool.engine.compute.model import Model
from kvtool.engine.sensitivity import layer_damage
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.trials import Continuation, Trials
from kvtool.files import write_whole

PREFIX, TAIL = 256, 48
"""Tokens that are quantized, and tokens behind them on which the damage is seen."""

BLOCK_SIZE = 32


@dataclass(frozen=True)
class _Chain:
    """Blocks of one prompt."""

    block_size: int
    tokens: NDArray[np.uint32]
    depth: NDArray[np.int32]


def layer_profile(model: Model, codec: str) -> NDArray[np.float64]:
    """Mean KL with one layer's keys, and one layer's values, in `codec`: [layers, 2].

    Two forwards of TAIL tokens a layer, once for models of one digest: the result is kept in the cache.
    """
    key = fingerprint(model.fingerprint["digest"].encode(), codec.encode(), TEXT.encode(), b"steered")
    path = cache_directory() / "layer-profiles" / f"{key}.json"
    layers = len(model.config.layers)
    try:
        found = np.array(json.loads(path.read_text(encoding="utf-8")), np.float64)
        if found.shape == (layers, 2) and np.isfinite(found).all():
            return found
    except (OSError, ValueError):
        pass
    tokens = model.encoder.tokenizer.encode(TEXT)
    tokens = np.resize(tokens, min(PREFIX + TAIL, model.config.max_positions // 2)).astype(np.uint32)
    blocks = (len(tokens) - 1) // BLOCK_SIZE if len(tokens) < PREFIX + TAIL else PREFIX // BLOCK_SIZE
    prefix = tokens[: blocks * BLOCK_SIZE].reshape(blocks, BLOCK_SIZE)
    chain = _Chain(BLOCK_SIZE, prefix, np.arange(blocks, dtype=np.int32))
    asked = Continuation(tuple(range(blocks)), tokens[blocks * BLOCK_SIZE :])
    found = layer_damage(Trials(model, chain, [asked]), asked, load_codec({"codec": codec}))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found.tolist()))
    return found

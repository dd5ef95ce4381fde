"""A model proves itself at load: what the paged path computes must be what plain transformers computes."""

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.attention import NAME
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.errors import KvtoolError

TOKENS, CUT, BLOCK = 24, 13, 8
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
"""Greatest relative error (L2 over all logits) that is still rounding."""


def selfcheck(model: Model, plain: Tensor) -> None:
    """Compare with `plain`, the model's own `plain_logits`, computed before it was made paged.

    A KvtoolError where the model cannot be cut into chunks that build on stored blocks.
    """
    tokens = probe_tokens(model.config.vocab)
    arena = Arena(model, -(-TOKENS // BLOCK), BLOCK)
    runner = Runner(model, arena)
    slots = list(range(arena.slots))[::-1]
    halves = [
        runner.step([Chunk(part, start, slots, len(part))])
        for part, start in ((tokens[:CUT], 0), (tokens[CUT:], CUT))
    ]
    error = float((torch.cat(halves) - plain).norm() / plain.norm())
    if not error <= TOLERANCE[model.dtype]:
        raise KvtoolError(
            f"{model.name}: computed in chunks over blocks its logits are off by {error:.1%}",
            f"the model depends on more than keys and values passed through {NAME}",
        )


def plain_logits(module: torch.nn.Module, vocab: int) -> Tensor:
    """Logits [TOKENS, vocab] of plain transformers, float32."""
    device = next(module.parameters()).device
    tokens = torch.from_numpy(probe_tokens(vocab).astype(np.int64))[None].to(device)
    with torch.inference_mode():
        logits: Tensor = module(input_ids=tokens, use_cache=False).logits[0].float()
    return logits


def probe_tokens(vocab: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """TOKENS ids spread over the vocabulary, uint32."""
    return (np.arange(1, TOKENS + 1, dtype=np.uint64) * 2654435761 % vocab).astype(np.uint32)

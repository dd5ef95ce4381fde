"""What a prefill of a model costs, in FLOPs, from its weights and layers."""

from collections import Counter

from torch import nn

from kvtool.analysis.flops import Prefill
from kvtool.engine.compute.model import Model


def prefill_of(model: Model) -> Prefill:
    """Two FLOPs per weight and token, two per query head, channel and attended token.

    The embedding is looked up and the output head runs for last tokens only: neither counts. All experts
    of a mixture do, so its depths look more alike than they are.
    """
    ends = {id(each) for part in _ends(model.module) for each in part.parameters()}
    weights = sum(each.numel() for each in model.module.parameters() if id(each) not in ends)
    whole, windows = 0.0, Counter[int]()
    for layer in model.config.layers:
        flops = 2 * layer.query_heads * (layer.key_dim + layer.value_dim)
        if layer.window is None:
            whole += flops
        else:
            windows[layer.window] += flops
    return Prefill(2.0 * weights, whole, tuple((float(windows[size]), size) for size in sorted(windows)))


def _ends(module: nn.Module) -> list[nn.Module]:
    """Embedding and output head, which may share their weight."""
    found = [module.get_input_embeddings(), module.get_output_embeddings()]  # type: ignore[operator]
    return [each for each in found if each is not None]

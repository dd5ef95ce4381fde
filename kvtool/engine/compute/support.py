"""Which models a paged cache can serve: refusals with the reason, before any weight is read."""

import inspect
import re
from typing import Any

from torch import nn

from kvtool.errors import KvtoolError

ATTENTION = {"full_attention", "sliding_attention"}
"""Layer types whose state is one key and value per token."""

MLP_TYPES = {"moe", "mlp", "dense", "sparse"}

LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}

RECURRENT = re.compile(
    r"Mamba|SSM|DeltaNet|LinearAttention|LightningAttention|Rwkv|xLSTM|Recurrent|ShortConv"
)
"""Class names of layers that keep a state in place of keys and values."""


def check_config(config: Any, where: str) -> None:
    """Refuse what a model's transformers config already rules out. `where` begins the message."""
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise KvtoolError(f"{where}: an encoder-decoder model", "kvtool serves decoder-only models")
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or []
    for index, kind in enumerate(types):
        if kind not in ATTENTION | MLP_TYPES:
            raise KvtoolError(
                f"{where}: layer {index} is a {kind} layer",
                "its state is not one key and value per token, so blocks of it cannot be shared",
            )
    for name, rope in _ropes(getattr(text, "rope_parameters", None)):
        if rope in LENGTH_DEPENDENT_ROPE:
            raise KvtoolError(
                f"{where}: {name} is '{rope}', which depends on the length of the whole sequence",
                "keys of a shared prefix would differ from request to request",
            )


def check_skeleton(skeleton: nn.Module, where: str) -> None:
    """Refuse what the model's code rules out. `skeleton` has no weights."""
    for name, module in skeleton.named_modules():
        if RECURRENT.search(type(module).__name__) and "." in name:
            number = next((part for part in name.split(".") if part.isdigit()), "?")
            raise KvtoolError(
                f"{where}: layer {number} ({name}: {type(module).__name__}) keeps a recurrent state",
                "its state is not one key and value per token, so blocks of it cannot be shared",
            )
    kinds = {parameter.kind for parameter in inspect.signature(skeleton.forward).parameters.values()}  # type: ignore[operator, arg-type]
    if (
        not getattr(skeleton, "_supports_attention_backend", False)
        or inspect.Parameter.VAR_KEYWORD not in kinds
    ):
        raise KvtoolError(
            f"{where}: the attention of {type(skeleton).__name__} does not go through transformers' registry",
            "see https://huggingface.co/docs/transformers/attention_interface",
        )


def _ropes(parameters: object) -> list[tuple[str, str]]:
    """(field, rope type) of a model's RoPE, or of each layer type's."""
    if not isinstance(parameters, dict):
        return []
    if "rope_type" in parameters:
        return [("rope_type", str(parameters["rope_type"]))]
    found = []
    for kind, inner in parameters.items():
        if isinstance(inner, dict):
            found.append((f"rope_type of {kind}", str(inner.get("rope_type"))))
    return found

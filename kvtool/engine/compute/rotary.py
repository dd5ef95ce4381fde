"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in one pass, in place of transformers' eight.

A model's attention calls `apply_rotary_pos_emb` of its own file. Where that gives the very bits of the common
form, rotating halves, an attention layer's forward is bound to globals of its own, in which the name means
ours; the file itself and other models stay as they are.
"""

import ctypes
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from kvtool.engine.compute.cpu import rotate, team

NAME = "apply_rotary_pos_emb"

ALONE = 1 << 15
"""Numbers that one worker has rotated before another could have begun."""

TRIED = (1, 3, 5, 16)
"""Batch, heads, tokens and channels of a trial. Halves are rotated: channels are even."""

_FIELDS = ctypes.c_int64 * rotate.FIELDS

Apply = Callable[..., tuple[Tensor, Tensor]]


def replace_rotary(module: nn.Module) -> None:
    """Let a model's attention layers rotate in one pass, on CPUs in float32, where it gives the same bits."""
    parameter = next(module.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32 or team.torch_team() is None:
        return
    for layer in module.modules():
        forward = inspect.unwrap(type(layer).forward)
        if not isinstance(forward, FunctionType) or NAME not in forward.__code__.co_names:
            continue
        theirs = forward.__globals__[NAME]
        if _same(theirs):
            bound = FunctionType(
                forward.__code__,
                {**forward.__globals__, NAME: _ours(theirs)},
                forward.__name__,
                forward.__defaults__,
                forward.__closure__,
            )
            bound.__kwdefaults__ = forward.__kwdefaults__
            layer.forward = MethodType(bound, layer)  # type: ignore[method-assign]


def _same(theirs: Apply) -> bool:
    """Whether a function rotates as ours does, to the bit, for keys of fewer heads too."""
    random = torch.Generator().manual_seed(0)
    query, key = torch.randn(TRIED, generator=random), torch.randn(TRIED, generator=random)[:, :1]
    cos, sin = torch.randn(2, 1, TRIED[2], TRIED[3], generator=random)
    try:
        truth = theirs(query, key, cos, sin)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return all(
        torch.equal(rotated(each, cos, sin), true) for each, true in zip((query, key), truth, strict=True)
    )


def _ours(theirs: Apply) -> Apply:
    def apply(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Any:
        whole = cos.shape == sin.shape == (1, *query.shape[2:]) == (1, *key.shape[2:])
        if whole and query.shape[0] == key.shape[0] == 1 and not more and not named:
            cos, sin = cos.contiguous(), sin.contiguous()
            return rotated(query, cos, sin), rotated(key, cos, sin)
        return theirs(query, key, cos, sin, *more, **named)

    return apply


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """states [1, H, T, D] * cos + (halves of states, the second negated, exchanged) * sin, [1, T, D] each."""
    lent = team.torch_team()
    assert lent is not None
    if states.stride(3) != 1:
        states = states.contiguous()
    assert states.dtype == cos.dtype == sin.dtype == torch.float32
    _, heads, tokens, width = states.shape
    out = states.new_empty(1, tokens, heads, width)
    workers = 1 if out.numel() <= ALONE else torch.get_num_threads()
    given = _FIELDS(
        workers, lent.number, lent.crew, tokens, heads, width, states.data_ptr(), states.stride(1),
        states.stride(2), out.data_ptr(), cos.data_ptr(), sin.data_ptr(),
    )  # fmt: skip
    lent.run(rotate.work(), ctypes.addressof(given), workers)
    return out.transpose(1, 2)

"""Gated MLPs (on CPUs) and RMS norms in fewer passes: proven equal by running both before one takes over.

A model's own code computes an MLP's activation and product as passes over the intermediate states, and a
norm in eight small operations, which on a GPU are a third of all launches. Most architectures have the same
few forms under names of their own, so they are told by what they compute, not by their class: whatever
differs stays as it is.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kvtool.engine.compute.cpu import layers, team
from kvtool.engine.compute.packed import PackedLinear

ACTIVATIONS = (("swish", ""), ("gelu", "tanh"), ("gelu", "none"), ("relu", ""))
"""What oneDNN can apply to a product's result before it is stored."""

ROUNDING = 1e-5
"""Greatest relative error (L2) of a layer that computes the same in another order."""

ROWS = 4

SIZES = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01, 0.001)
"""Sizes of the numbers in rows that are tried: activations differ only where a gate is neither large nor
small, and how large it becomes is the weight's and the norm's affair."""


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), the activation and the product done where the sums are."""

    def __init__(
        self, gate: PackedLinear, up: PackedLinear, down: PackedLinear, activation: tuple[str, str]
    ) -> None:
        super().__init__()
        self.gate_proj = gate
        self.up_proj = up
        self.down_proj = down
        self._activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., hidden] -> [..., hidden]."""
        product = torch.ops.mkldnn._linear_pointwise
        gate, up = self.gate_proj, self.up_proj
        name, algorithm = self._activation
        gates = product(rows, gate.packed, gate.bias, name, [], algorithm)
        out: Tensor = self.down_proj(product.binary(rows, gates, up.packed, up.bias, "mul"))
        return out


class RMSNorm(nn.Module):
    """torch's own, which is one call from Python."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., n] -> [..., n]."""
        return torch.rms_norm(rows, self.weight.shape, self.weight, self._epsilon)


def fuse(module: nn.Module, exact: bool) -> None:
    """Replace what a fused layer computes as well; MLPs only where `pack` has packed them.

    exact: torch's norm only where it gives the very same bits; else it may round once where the model does
    twice.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            fused = _gated(child) or _norm(child, exact)
            if fused is not None:
                setattr(parent, name, fused)


def _gated(module: nn.Module) -> nn.Module | None:
    parts: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = parts
    candidates: list[nn.Module] = []
    if all(isinstance(each, layers.PackedLinear) for each in parts):
        candidates += (layers.GatedMLP(gate, up, down, known) for known in layers.ACTIVATIONS)
    elif all(isinstance(each, PackedLinear) and each.packed.dtype == torch.float32 for each in parts):
        # In 16 bits one activation cannot be told from another.
        candidates += (GatedMLP(gate, up, down, known) for known in ACTIVATIONS)
    return next((each for each in candidates if _same(each, module, gate.in_features)), None)


def _norm(module: nn.Module, exact: bool) -> nn.Module | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float):
        return None
    parameters = dict(module.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1:
        return None
    weight = parameters["weight"]
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and team.torch_team() is not None:
        ours = layers.RMSNorm(weight, epsilon)
        return ours if _same(ours, module, len(weight)) else None
    fused = RMSNorm(weight, epsilon)
    rows = _rows(len(weight), weight)
    with torch.inference_mode():
        out, truth = fused(rows), module(rows)
    if exact:
        return fused if torch.equal(out, truth) else None
    close = torch.allclose(out.float(), truth.float(), rtol=2 * torch.finfo(out.dtype).eps, atol=0.0)
    return fused if close and out.dtype == truth.dtype else None


def _same(fused: nn.Module, module: nn.Module, inputs: int) -> bool:
    """Whether only rounding differs, for rows of every size."""
    rows = _rows(inputs, next(module.parameters()))
    with torch.inference_mode():
        truth = module(rows)
        errors, sizes = (each.flatten(1).norm(dim=1) for each in (fused(rows) - truth, truth))
    return bool((errors <= ROUNDING * sizes).all())


def _rows(inputs: int, like: Tensor) -> Tensor:
    """Rows of each of SIZES [sizes, ROWS, inputs]."""
    many = torch.randn(1, ROWS, inputs, generator=torch.Generator().manual_seed(0))
    return (many * torch.tensor(SIZES)[:, None, None]).to(like.device, like.dtype)

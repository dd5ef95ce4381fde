"""Gated MLPs (on CPUs) and RMS norms in fewer passes: proven equal by running both before one takes over.

A model's own code computes an MLP's activation and product as passes over the intermediate states, and a
norm in eight small operations, which on a GPU are a third of all launches. Most architectures have the same
few forms under names of their own, so they are told by what they compute, not by their class: whatever
differs stays as it is.
"""

import torch
from torch import Tensor, nn

from kvtool.engine.compute.packed import PackedLinear

ACTIVATIONS = (("swish", ""), ("gelu", "tanh"), ("gelu", "none"), ("relu", ""))
"""What oneDNN can apply to a product's result before it is stored."""

ROUNDING = 1e-5
"""Greatest relative error (L2) of an MLP that computes the same."""

ROWS = 4


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

    exact: only by what gives the very same bits. Otherwise a norm may round once where the model does twice.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            fused = _gated(child) or _norm(child, exact)
            if fused is not None:
                setattr(parent, name, fused)


def _gated(module: nn.Module) -> GatedMLP | None:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = parts
    if not (
        isinstance(gate, PackedLinear) and isinstance(up, PackedLinear) and isinstance(down, PackedLinear)
    ):
        return None
    if gate.packed.dtype != torch.float32:  # in 16 bits one activation cannot be told from another
        return None
    rows = _rows(gate.packed)
    with torch.inference_mode():
        truth = module(rows)
        for activation in ACTIVATIONS:
            fused = GatedMLP(gate, up, down, activation)
            if float((fused(rows) - truth).norm()) <= ROUNDING * float(truth.norm()):
                return fused
    return None


def _norm(module: nn.Module, exact: bool) -> RMSNorm | None:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(epsilon, float):
        return None
    parameters = dict(module.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1:
        return None
    fused = RMSNorm(parameters["weight"], epsilon)
    rows = _rows(fused.weight)
    with torch.inference_mode():
        ours, truth = fused(rows), module(rows)
    if exact:
        return fused if torch.equal(ours, truth) else None
    close = torch.allclose(ours.float(), truth.float(), rtol=2 * torch.finfo(ours.dtype).eps, atol=0.0)
    return fused if close and ours.dtype == truth.dtype else None


def _rows(weight: Tensor) -> Tensor:
    """Large enough inputs [1, ROWS, n] to tell one activation from another."""
    many = torch.randn(1, ROWS, weight.shape[-1], generator=torch.Generator().manual_seed(0))
    return (10 * many).to(weight.device, weight.dtype)

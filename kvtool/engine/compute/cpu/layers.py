"""Linear layers, gated MLPs, tied embeddings and norms as modules, computed by torch's workers (float32)."""

import ctypes

import torch
from torch import Tensor, nn

from kvtool.engine.compute.cpu import norm, products, team, vector

ACTIVATIONS = (products.SILU, products.GELU_TANH)
"""What `GatedMLP` knows."""

ALONE = 1 << 15
"""Numbers that one worker has normalized before another could have begun."""

_LAYER_FIELDS, _NORM_FIELDS = ctypes.c_int64 * products.FIELDS, ctypes.c_int64 * norm.FIELDS


def _team() -> team.Team:
    lent = team.torch_team()
    assert lent is not None, "asked for before layers were packed"
    return lent


def _multiply(
    rows: Tensor, layer: "PackedLinear", gate: "PackedLinear | None" = None, activation: int = 0
) -> Tensor:
    """rows [..., in] -> [..., layer.padded]."""
    lent, workers, packed = _team(), torch.get_num_threads(), layer.packed
    rows = rows.contiguous()
    *shape, inputs = rows.shape
    assert inputs == layer.in_features
    assert rows.dtype == packed.dtype == torch.float32, "the kernels read float32"
    out = rows.new_empty(*shape, layer.padded)
    scratch, gates = None, (0, 0)
    if gate is not None:
        scratch = rows.new_empty(products.ROWS * products.PANEL * workers)
        gates = (gate.packed.data_ptr(), gate.start.data_ptr())
    given = _LAYER_FIELDS(
        workers, lent.number, lent.crew, rows.numel() // inputs, inputs, layer.padded, rows.data_ptr(),
        out.data_ptr(), packed.data_ptr(), layer.start.data_ptr(), *gates, activation,
        0 if scratch is None else scratch.data_ptr(),
    )  # fmt: skip
    lent.run(products.layer_work(), ctypes.addressof(given), workers)
    return out


class PackedLinear(nn.Module):
    """A linear layer that holds its weight in panels only; see `products.py`."""

    start: Tensor
    """The bias, or zeros, of the outputs and what fills them up to whole vectors."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        added = -self.out_features % vector.LANES
        padded = torch.cat([weight, weight.new_zeros(added, self.in_features)]) if added else weight
        panels = [panel.t().flatten() for panel in torch.split(padded, products.PANEL)]
        self.packed = nn.Parameter(torch.cat(panels), requires_grad=False)
        self.bias = linear.bias
        self.padded = len(padded)
        start = weight.new_zeros(self.padded)
        if self.bias is not None:
            start[: self.out_features] = self.bias.detach()
        self.register_buffer("start", start, persistent=False)

    @property
    def weight(self) -> Tensor:
        """A plain copy [out, in], for code that looks at weights."""
        panels = torch.split(self.packed, products.PANEL * self.in_features)
        return torch.cat([panel.view(self.in_features, -1).t() for panel in panels])[: self.out_features]

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., in] -> [..., out]."""
        out = _multiply(rows, self)
        return out if self.padded == self.out_features else out[..., : self.out_features].contiguous()


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); what is between the products never leaves the nearest cache."""

    def __init__(self, gate: PackedLinear, up: PackedLinear, down: PackedLinear, activation: int) -> None:
        super().__init__()
        self.gate_proj = gate
        self.up_proj = up
        self.down_proj = down
        self._activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., hidden] -> [..., hidden]."""
        states = _multiply(rows, self.up_proj, self.gate_proj, self._activation)
        out: Tensor = self.down_proj(states[..., : self.up_proj.out_features])
        return out


class PackedEmbedding(nn.Module):
    """The embedding that shares its weight with an output head, looked up where that holds it: a token's
    numbers lie a panel's width apart. Slower than rows would be, but a hundredth of a step at most."""

    def __init__(self, head: PackedLinear, scale: float) -> None:
        super().__init__()
        self.packed = head.packed
        self._tokens = head.out_features
        self._inputs, self._outputs = head.in_features, head.padded
        self._scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [...] -> [..., in]."""
        assert bool(((tokens >= 0) & (tokens < self._tokens)).all()), "no such token"
        first = tokens // products.PANEL * products.PANEL
        width = (self._outputs - first).clamp(max=products.PANEL)
        start = first * self._inputs + tokens - first
        places = start[..., None] + width[..., None] * torch.arange(self._inputs)
        return self.packed[places] * self._scale


class RMSNorm(nn.Module):
    """rows / sqrt(mean(rows ** 2) + epsilon) * weight (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    epsilon: Tensor

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("epsilon", torch.tensor([epsilon], dtype=torch.float32), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., n] -> [..., n]."""
        lent, weight = _team(), self.weight
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        count, width = rows.numel(), rows.shape[-1]
        workers = 1 if count <= ALONE else torch.get_num_threads()
        assert rows.dtype == weight.dtype == torch.float32 and width == weight.shape[0]
        given = _NORM_FIELDS(
            workers, lent.number, lent.crew, count // width, width, rows.data_ptr(), weight.data_ptr(),
            out.data_ptr(), self.epsilon.data_ptr(),
        )  # fmt: skip
        lent.run(norm.work(), ctypes.addressof(given), workers)
        return out

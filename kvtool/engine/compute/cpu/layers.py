"""Linear layers, gated MLPs, tied heads and norms as modules, computed by torch's workers in float32."""

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
    work: int, rows: Tensor, outputs: int, weight: Tensor, bias: Tensor | None, scratch: int,
    gate: Tensor | None = None, gate_bias: Tensor | None = None, activation: int = 0,
) -> Tensor:  # fmt: skip
    """rows [..., inputs] -> [..., outputs]. scratch: float32 that each worker needs."""
    lent, workers = _team(), torch.get_num_threads()
    rows = rows.contiguous()
    inputs = rows.shape[-1]
    assert rows.dtype == weight.dtype == torch.float32, "the kernels read float32"
    out = rows.new_empty(*rows.shape[:-1], outputs)
    room = rows.new_empty(scratch * workers)
    addresses = [0 if each is None else each.data_ptr() for each in (weight, bias, gate, gate_bias)]
    given = _LAYER_FIELDS(
        workers, lent.number, lent.crew, out.numel() // outputs, inputs, outputs, rows.data_ptr(),
        out.data_ptr(), *addresses, activation, room.data_ptr(),
    )  # fmt: skip
    lent.run(work, ctypes.addressof(given), workers)
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
        start = weight.new_zeros(len(padded))
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
        assert rows.shape[-1] == self.in_features
        out = _multiply(products.layer_work(), rows, len(self.start), self.packed, self.start, 0)
        return out if len(self.start) == self.out_features else out[..., : self.out_features].contiguous()


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
        gate, up = self.gate_proj, self.up_proj
        assert rows.shape[-1] == up.in_features
        states = _multiply(
            products.layer_work(), rows, len(up.start), up.packed, up.start, products.ROWS * products.PANEL,
            gate.packed, gate.start, self._activation,
        )  # fmt: skip
        out: Tensor = self.down_proj(states[..., : up.out_features])
        return out


class TiedHead(nn.Module):
    """An output head that shares its weight with the embedding, which needs it as it is."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., in] -> [..., out]."""
        assert rows.shape[-1] == self.weight.shape[1]
        out = _multiply(products.head_work(), rows, self.weight.shape[0], self.weight, None, 0)
        if self.bias is not None:
            out += self.bias
        return out


class RMSNorm(nn.Module):
    """rows / sqrt(mean(rows ** 2) + epsilon) * weight (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    epsilon: Tensor

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("epsilon", torch.tensor([epsilon], dtype=torch.float32), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., n] -> [..., n]."""
        lent = _team()
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        workers = 1 if rows.numel() <= ALONE else torch.get_num_threads()
        width = rows.shape[-1]
        assert rows.dtype == self.weight.dtype == torch.float32 and width == len(self.weight)
        given = _NORM_FIELDS(
            workers, lent.number, lent.crew, rows.numel() // width, width, rows.data_ptr(),
            self.weight.data_ptr(), out.data_ptr(), self.epsilon.data_ptr(),
        )  # fmt: skip
        lent.run(norm.work(), ctypes.addressof(given), workers)
        return out

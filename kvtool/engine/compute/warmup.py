"""Compiles ahead what first requests need: oneDNN makes a kernel for each number of rows that it meets."""

import time

import torch
from torch import nn

from kvtool.engine.compute.fused import GatedMLP
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.packed import PackedLinear, padded

ROWS = 128
"""Small batches, whose kernels take as long to compile as a tenth of their forward and more."""

SECONDS = 0.5
"""Not longer: where a layer alone takes so long, nobody notices what its kernels cost."""


def warm_up(model: Model) -> None:
    """Run one of each kind of packed layer on zeros, for each padded number of rows. Elsewhere than on a CPU
    there is none, and nothing is done."""
    end = time.monotonic() + SECONDS
    layers = _kinds(model.module)
    for rows in sorted({padded(rows) for rows in range(1, ROWS + 1)}):
        for layer in layers:
            if time.monotonic() > end:
                return
            first = layer.gate_proj if isinstance(layer, GatedMLP) else layer
            with torch.inference_mode():
                layer(torch.zeros(1, rows, first.packed.shape[1], dtype=first.packed.dtype))


def _kinds(module: nn.Module) -> list[PackedLinear | GatedMLP]:
    """One layer of each shape and form; those within a fused one run as part of it."""
    found: dict[object, PackedLinear | GatedMLP] = {}
    inside = {id(part) for each in module.modules() if isinstance(each, GatedMLP) for part in each.children()}
    for each in module.modules():
        if isinstance(each, GatedMLP):
            found.setdefault((each.gate_proj.packed.shape, each.down_proj.packed.shape), each)
        elif isinstance(each, PackedLinear) and id(each) not in inside:
            found.setdefault((each.packed.shape, each.bias is None), each)
    return list(found.values())

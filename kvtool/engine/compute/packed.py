"""Linear layers on CPUs with weights packed once, in place of MKL, which packs in every call.

In float32 our own kernels compute them (`cpu/`). In 16 bits, and where those cannot run, oneDNN does, which
compiles a kernel for each shape and number of rows that it meets, hundreds of kB and a millisecond or two
each: `padded` keeps them few.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvtool.engine.compute.cpu import layers, team

FEW = 8
"""Rows up to which the output head is computed the other way around."""

PADDED = ((32, 1), (128, 8))
"""(rows, multiple): up to so many rows they are filled up to the multiple; above all of them to ROWS."""

ROWS = 32


def padded(rows: int) -> int:
    """The least number of rows >= `rows` for which kernels are compiled."""
    multiple = next((multiple for most, multiple in PADDED if rows <= most), ROWS)
    return -(-rows // multiple) * multiple


class PackedLinear(nn.Module):
    """A bias-free or biased linear layer that holds its weight in oneDNN's layout only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """A plain copy [out, in], for code that looks at weights."""
        return self.packed.to_dense()

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., in] -> [..., out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out


class TiedHead(nn.Module):
    """An output head that shares its weight with the embedding, where that needs it unpacked.

    MKL streams the matrix about twice as fast when it is the left factor and the right one has 2 to FEW
    columns.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """rows [..., in] -> [..., out]."""
        flat = rows.flatten(0, -2)
        if not 0 < len(flat) <= FEW:
            return functional.linear(rows, self.weight, self.bias)
        columns = flat.repeat(2, 1) if len(flat) == 1 else flat
        out = torch.mm(self.weight, columns.t()).t()[: len(flat)].contiguous()
        if self.bias is not None:
            out += self.bias
        return out.view(*rows.shape[:-1], -1)


def pack(module: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
    """Replace a model's linear layers in place, one at a time, so that memory does not double.

    False where neither can compute them: the model stays as it is. Other kinds of layers stay too, and
    experts, which each see a number of rows of their own.
    """
    ours = dtype == torch.float32 and team.torch_team() is not None
    if device.type != "cpu" or not (ours or _packs(dtype)):
        return False
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    # Not the layers themselves, which a list would keep in memory.
    parents = [(path, each) for path, each in module.named_modules() if type(each) is not nn.Linear]
    for path, parent in parents:
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or "expert" in path:
                continue
            if owners[id(child.weight)] == 1:
                setattr(parent, name, layers.PackedLinear(child) if ours else PackedLinear(child))
            elif dtype == torch.float32:
                shared = _shared(module, child) if ours and owners[id(child.weight)] == 2 else None
                setattr(parent, name, shared or TiedHead(child))
    return True


def _shared(module: nn.Module, head: nn.Linear) -> nn.Module | None:
    """The packed head, after the embedding that shares its weight has been replaced by one that does again;
    None where the embedding does more than look a row up and scale it."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Embedding) and child.weight is head.weight:
                packed = layers.PackedLinear(head)
                ours = layers.PackedEmbedding(packed, float(getattr(child, "embed_scale", 1.0)))
                tokens = torch.arange(0, head.out_features, max(head.out_features // ROWS, 1))
                with torch.inference_mode():
                    if not torch.equal(ours(tokens), child(tokens)):
                        return None
                setattr(parent, name, ours)
                return packed
    return None


def _packs(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if torch.ops.mkldnn._is_mkldnn_acl_supported():  # ARM's library has layouts of its own
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32

"""Codes of 2 to 6 or 8 bits in bytes: slices of a row lie above each other, so unpacking is shifts alone.

Four bits: the low nibbles are a row's first half, the high ones its second. Two bits: four quarters. Three,
five and six bits: two planes, the low two or four bits of all codes and then the others. A row is padded to
whole bytes.
"""

import torch
from torch import Tensor

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""Bits of a code -> the planes it is cut into, low bits first; each divides eight."""


def packed_width(dim: int, bits: int) -> int:
    """Bytes of a row of `dim` codes."""
    return sum(-(-dim * plane // 8) for plane in PLANES[bits])


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 [..., dim], each below 2**bits -> uint8 [..., packed_width(dim, bits)]."""
    dim = codes.shape[-1]
    packed = []
    below = 0
    for plane in PLANES[bits]:
        part = (codes >> below) & ((1 << plane) - 1)
        below += plane
        width = -(-dim * plane // 8)
        part = torch.nn.functional.pad(part, (0, width * (8 // plane) - dim))
        slices = part.reshape(*part.shape[:-1], 8 // plane, width)
        row = slices[..., 0, :].clone()
        for number in range(1, 8 // plane):
            row |= slices[..., number, :] << (number * plane)
        packed.append(row)
    return torch.cat(packed, -1)


def unpack(packed: Tensor, dim: int, bits: int) -> Tensor:
    """Inverse of `pack`: uint8 [..., dim]."""
    codes = None
    at = below = 0
    for plane in PLANES[bits]:
        width = -(-dim * plane // 8)
        row = packed[..., at : at + width]
        at += width
        mask = (1 << plane) - 1
        slices = [(row >> (number * plane)) & mask for number in range(8 // plane)]
        part = torch.cat(slices, -1)[..., :dim] << below
        codes = part if codes is None else codes | part
        below += plane
    assert codes is not None
    return codes

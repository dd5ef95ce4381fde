"""int8: keys per channel over 32 tokens, values per token and half a head, both symmetric.

Keys have outlier channels that keep their place from token to token, values do not; hence the two
directions (KIVI, Liu et al. 2024).
"""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class Int8(Quantized):
    """8.25 bits per element at head_dim 64, 8.19 at 128."""

    name: ClassVar[str] = "int8"
    keys: ClassVar[Coding] = Coding(bits=8, along=TOKENS, rotated=False)
    values: ClassVar[Coding] = Coding(bits=8, along=CHANNELS, rotated=False)


CODEC = Int8

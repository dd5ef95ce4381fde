"""int4: keys rotated and per channel over 32 tokens, values rotated and per token and half a head.

Rotation (QuaRot, Ashkboos et al. 2024) spreads the keys' outlier channels; what is left varies less along
the tokens of a channel than along the channels of a token.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class Int4(Quantized):
    """4.5 bits per element at head_dim 64, 4.38 at 128."""

    name: ClassVar[str] = "int4"
    steered: ClassVar[bool] = True
    keys: ClassVar[Coding] = Coding(bits=4, along=TOKENS, rotated=True)
    values: ClassVar[Coding] = Coding(bits=4, along=CHANNELS, rotated=True)


CODEC = Int4

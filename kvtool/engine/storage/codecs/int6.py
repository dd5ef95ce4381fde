"""int6: as int4 with six bits."""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class Int6(Quantized):
    """6.5 bits per element at head_dim 64, 6.38 at 128."""

    name: ClassVar[str] = "int6"
    steered: ClassVar[bool] = True
    keys: ClassVar[Coding] = Coding(bits=6, along=TOKENS, rotated=True)
    values: ClassVar[Coding] = Coding(bits=6, along=CHANNELS, rotated=True)


CODEC = Int6

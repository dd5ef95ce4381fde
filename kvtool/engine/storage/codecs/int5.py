"""int5: as int4 with five bits."""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class Int5(Quantized):
    """5.5 bits per element at head_dim 64, 5.38 at 128."""

    name: ClassVar[str] = "int5"
    steered: ClassVar[bool] = True
    keys: ClassVar[Coding] = Coding(bits=5, along=TOKENS, rotated=True)
    values: ClassVar[Coding] = Coding(bits=5, along=CHANNELS, rotated=True)


CODEC = Int5

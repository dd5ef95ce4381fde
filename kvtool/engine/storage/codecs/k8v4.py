"""k8v4: keys as in int8, values rotated and in four bits: keys suffer more."""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class K8V4(Quantized):
    """6.38 bits per element at head_dim 64, 6.25 at 128."""

    name: ClassVar[str] = "k8v4"
    keys: ClassVar[Coding] = Coding(bits=8, along=TOKENS, rotated=False)
    values: ClassVar[Coding] = Coding(bits=4, along=CHANNELS, rotated=True)


CODEC = K8V4

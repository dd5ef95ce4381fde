"""k3v2: three-bit keys and two-bit values, coded as in int4: for cold blocks, and only if measured."""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.quantized import CHANNELS, TOKENS, Coding, Quantized


@dataclass(frozen=True)
class K3V2(Quantized):
    """3 bits per element at head_dim 64, 2.88 at 128; prewarm holds it to --max-kl."""

    name: ClassVar[str] = "k3v2"
    steered: ClassVar[bool] = True
    keys: ClassVar[Coding] = Coding(bits=3, along=TOKENS, rotated=True)
    values: ClassVar[Coding] = Coding(bits=2, along=CHANNELS, rotated=True)


CODEC = K3V2

"""lossless: raw blocks whose bytes are sorted into planes and compressed with zstd: for archives.

Exact like `raw`. About 1.45 times smaller in bf16, less in fp32; loading costs a decompression, and a block's
size is known only once it is there, so plans count it as raw.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvtool.engine.storage.codecs.raw import Raw


@dataclass(frozen=True)
class Lossless(Raw):
    """Raw's parts, compressed together into one (storage/planes.py)."""

    name: ClassVar[str] = "lossless"
    compressed: ClassVar[bool] = True


CODEC = Lossless

"""Codecs, one file each: `int8.py` is `--codec int8` and exposes CODEC, the class; see storage/codec.py."""

from typing import TYPE_CHECKING

from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import Codec

CODECS: "Registry[type[Codec]]" = Registry("kvtool.engine.storage.codecs", "CODEC", "codec")

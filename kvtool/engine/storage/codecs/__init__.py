"""Codecs, one file each: `int8.py` is `--codec int8` and exposes CODEC, the class; see storage/codec.py."""

from typing import Any

from kvtool.registry import Registry

CODECS: Registry[Any] = Registry("kvtool.engine.storage.codecs", "CODEC", "codec")
"""Classes of `Codec` by name."""

AUTO = "auto"
"""The value of `--codec` that is no codec: it measures which one each block needs."""

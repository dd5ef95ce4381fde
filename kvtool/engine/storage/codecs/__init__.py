"""Codecs, one file each: `int8.py` is `--codec int8` and exposes CODEC, the class; see storage/codec.py."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvtool.errors import KvtoolError
from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec, Codec

CODECS: "Registry[type[Codec]]" = Registry("kvtool.engine.storage.codecs", "CODEC", "codec")


AUTO = "auto"
"""The value of `--codec` that is no codec: it measures which one each block needs."""


def load_codec(config: Mapping[str, Any]) -> "BlockCodec":
    """The codec that a JSON config describes. Unknown names and fields are errors that say so."""
    from kvtool.engine.storage.codec import Mixed

    fields = dict(config)
    name = str(fields.pop("codec", None))
    try:
        if name == "mixed":
            mixed = Mixed(tuple(fields.pop("layers")), **fields)
            for layer in set(mixed.layers):
                CODECS.load(layer)
            return mixed
        return CODECS.load(name)(**fields)
    except (TypeError, KeyError) as error:
        raise KvtoolError(f"codec {name}: {error}", "it was written by another kvtool") from error

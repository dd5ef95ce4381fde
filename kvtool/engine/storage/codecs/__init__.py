"""Codecs, one file each: `int8.py` is `--codec int8` and exposes CODEC, the class; see storage/codec.py."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvtool.errors import KvtoolError
from kvtool.registry import Registry

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import Codec

CODECS: "Registry[type[Codec]]" = Registry("kvtool.engine.storage.codecs", "CODEC", "codec")


def load_codec(config: Mapping[str, Any]) -> "Codec":
    """The codec that a JSON config describes. Unknown names and fields are errors that say so."""
    fields = dict(config)
    made: type[Codec] = CODECS.load(str(fields.pop("codec", None)))
    try:
        return made(**fields)
    except TypeError as error:
        raise KvtoolError(f"codec {config['codec']}: {error}", "it was written by another kvtool") from error

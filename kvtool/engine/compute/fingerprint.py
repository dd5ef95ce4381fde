"""A model's fingerprint: named fields that its KV values depend on, and one digest over them.

Everything comes from the files themselves, not from what a version of transformers makes of them, so
an upgrade does not orphan shards. Digests of weights are kept in the cache directory by inode, size, times.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvtool.blocks import fingerprint
from kvtool.embedded import cache_directory
from kvtool.engine.compute.layout import Layer
from kvtool.errors import KvtoolError
from kvtool.files import write_whole
from kvtool.tokens import PromptEncoder

VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"}
"""Keys of config.json that say nothing about the values: the dtype is a field of its own."""

ROPE = ("rope", "rotary", "original_max_position_embeddings")


def model_fingerprint(
    folder: Path, layers: Iterable[Layer], dtype: str, encoder: PromptEncoder | None
) -> dict[str, str]:
    """Fields architecture, config, weights, rope, attention, dtype, tokenizer, chat_template, and digest."""
    config = read_config(folder)
    fields = {
        "architecture": ",".join(config.get("architectures") or [str(config.get("model_type"))]),
        "config": fingerprint(_canonical(_without(config, VOLATILE))),
        "weights": weights_digest(folder),
        "rope": _canonical(_rope(config)).decode(),
        "attention": fingerprint("\n".join(layer.describe() for layer in layers).encode()),
        "dtype": dtype,
        "tokenizer": encoder.tokenizer.fingerprint if encoder else "none",
        "chat_template": encoder.template.fingerprint if encoder else "none",
    }
    return {**fields, "digest": fingerprint(_canonical(fields))}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is on disk."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KvtoolError(f"{path}: {error}", "name a Hugging Face model directory") from error
    if not isinstance(config, dict):
        raise KvtoolError(f"{path}: not an object")
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files, sorted. Pickled weights do not count: they are never loaded."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise KvtoolError(
            f"{folder}: no .safetensors weights", "pickled weights are never loaded: convert them"
        )
    return files


def weights_digest(folder: Path) -> str:
    """sha256 over the names and contents of all weight files; a file is read again only if it changed."""
    memory = cache_directory() / "weights-digests.json"
    known = _read_memory(memory)
    whole = hashlib.sha256()
    fresh = {}
    for path in weight_files(folder):
        status = path.stat()
        # mtime can be set back, as rsync and tar do; ctime cannot.
        key = f"{path.resolve()}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        if key not in known:
            with path.open("rb") as handle:
                fresh[key] = hashlib.file_digest(handle, "sha256").hexdigest()
        whole.update(f"{path.name}\0{known.get(key) or fresh[key]}\n".encode())
    if fresh:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_whole(memory, json.dumps({**_read_memory(memory), **fresh}, indent=0, sort_keys=True))
    return whole.hexdigest()


def _read_memory(path: Path) -> dict[str, str]:
    """Digests by path, inode, size and times. A damaged file only costs hashing again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
    return value


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    return {key: value for key, value in config.items() if any(word in key for word in ROPE)}


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()

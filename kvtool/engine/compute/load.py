"""Load a decoder-only model so that it runs over block tables, or refuse it with the reason."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kvtool import embedded
from kvtool.engine.compute import attention
from kvtool.engine.compute.fingerprint import model_fingerprint, read_config, weight_files
from kvtool.engine.compute.fused import fuse
from kvtool.engine.compute.layout import PROBE, Layer, probe_layers
from kvtool.engine.compute.model import Model, ModelConfig
from kvtool.engine.compute.packed import pack
from kvtool.engine.compute.rotary import replace_rotary
from kvtool.engine.compute.selfcheck import plain_logits, selfcheck
from kvtool.engine.compute.support import check_config, check_skeleton
from kvtool.errors import KvtoolError
from kvtool.tokens import load_encoder

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
"""Values of `--dtype` beside auto."""

DEFINITION = "eager"
"""The attention that a model's own file spells out: what the self-check takes for the truth. (Gemma 2 under
`sdpa` lost its soft cap in some versions of transformers.)"""

ADAPTER = "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_model(
    spec: str = "embedded",
    device: str = "cpu",
    dtype: str = "auto",
    *,
    chat_template: str = "auto",
    warn: Callable[[str], None] = lambda _: None,
) -> Model:
    """The model for `--model`: `embedded` or a Hugging Face model directory with safetensors weights.

    device: auto, cpu, cuda or cuda:N. dtype: auto (float32 on CPUs, 16 bits on CUDA) or one of DTYPES.
    `warn` gets what the user must know. KvtoolError for a model that cannot be served, with the reason.
    """
    place = _device(device)
    kind = _dtype(dtype, place)
    folder = embedded.model_directory() if spec == "embedded" else Path(spec)
    if not folder.is_dir():
        raise KvtoolError(f"--model {spec}: no such directory", "name a model directory, or embedded")
    name = spec if spec == "embedded" else folder.resolve().name
    if (folder / ADAPTER).exists():  # transformers drops it, or takes another model for its base
        raise KvtoolError(
            f"{folder}: holds an adapter ({ADAPTER}), which would not be served",
            "merge it into the model's weights, or take its files out of the folder",
        )
    read_config(folder)
    weight_files(folder)
    module = _load_module(folder, kind, place)
    text = module.config.get_text_config()  # type: ignore[union-attr, operator]
    plain = _defined_logits(module, int(text.vocab_size), str(folder))
    if pack(module, place, kind) or place.type == "cuda":
        fuse(module, exact=place.type == "cpu")
    replace_rotary(module)
    layers = make_paged(module, str(folder))
    encoder = None
    if any((folder / file).is_file() for file in TOKENIZER_FILES):
        encoder = load_encoder("embedded" if spec == "embedded" else str(folder), chat_template, warn)
    model = Model(
        name=name,
        module=module,
        config=ModelConfig(
            layers=layers,
            vocab=int(text.vocab_size),
            max_positions=int(getattr(text, "max_position_embeddings", None) or 1 << 30),
        ),
        fingerprint=model_fingerprint(folder, layers, str(kind).removeprefix("torch."), encoder),
        device=place,
        dtype=kind,
        stop_tokens=_stop_tokens(module),
        prompt_encoder=encoder,
    )
    selfcheck(model, plain)
    return model


def _load_module(folder: Path, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The model as plain transformers loads it, in evaluation mode."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(folder, **safe)
        check_config(config, str(folder))
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        check_skeleton(skeleton, str(folder))
        with _no_progress_bar():
            module, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=DEFINITION,
                use_safetensors=True,
                output_loading_info=True,
                **safe,
            )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise KvtoolError(f"{folder}: {reason}") from error
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if info.get(problem):
            raise KvtoolError(f"{folder}: {problem.replace('_', ' ')}: {sorted(map(str, info[problem]))[0]}")
    loaded: nn.Module = module.eval().requires_grad_(False).to(device)
    return loaded


def _defined_logits(module: Any, vocab: int, where: str) -> Tensor:
    """`plain_logits`, by a loop over experts where torch's grouped product cannot read their weights.

    A KvtoolError where plain transformers cannot compute the model at all.
    """
    try:
        return plain_logits(module, vocab)
    except RuntimeError as error:
        reason = error
    if module.device.type == "cpu":
        try:
            module.set_experts_implementation("eager")
            return plain_logits(module, vocab)
        except RuntimeError as error:
            reason = error
    raise KvtoolError(
        f"{where}: plain transformers cannot compute this model: {str(reason).splitlines()[0]}",
        "check the sizes in its config.json",
    )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws its own while it loads, terminal or not."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def make_paged(module: Any, where: str) -> tuple[Layer, ...]:
    """Switch the model's attention over and return its layers."""
    module.set_attn_implementation(PROBE)
    layers = probe_layers(module, where)
    module.set_attn_implementation(attention.NAME)
    return layers


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise KvtoolError(f"--device {name}: not a device", "choose auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise KvtoolError(f"--device {name}: not supported", "choose auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise KvtoolError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        if name not in DTYPES:
            raise KvtoolError(f"--dtype {name}: unknown", f"choose from auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def _stop_tokens(module: Any) -> frozenset[int]:
    """End-of-sequence ids of generation_config.json, or else of the config."""
    for config in (getattr(module, "generation_config", None), module.config.get_text_config()):
        stop = getattr(config, "eos_token_id", None)
        if stop is not None:
            return frozenset([stop] if isinstance(stop, int) else stop)
    return frozenset()

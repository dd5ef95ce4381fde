"""Shards of another model or in a bad state, through the commands: each is caught with the field named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from kvtool.cli import main

KEY = "0123456789abcdef0123456789abcdef"


def kvtool(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture(autouse=True)
def no_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise SystemExit("served what it should have refused")

    monkeypatch.setattr("kvtool.engine.serving.launch.Server.run", run)


@pytest.fixture(scope="module")
def made(tiny_model: Path, branching_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    (root / "key").write_text(KEY)
    made = kvtool(
        "prewarm", "--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--signing-key",
        root / "key", "--out", root / "shards",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "shards", tmp_path / "shards"))


def change_json(path: Path, change: Callable[[dict], object]) -> None:
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def another_revision(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    weights[name].flatten()[7] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def another_tokenizer(folder: Path) -> None:
    def swap(body: dict) -> None:
        vocab = body["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    change_json(folder / "tokenizer.json", swap)


def another_rope(folder: Path) -> None:
    def turn(body: dict) -> None:
        rope = body.setdefault("rope_parameters", {"rope_type": "default"})
        rope["rope_theta"] = body["rope_theta"] = 5000.0

    change_json(folder / "config.json", turn)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (another_revision, "weights: "),
        (another_tokenizer, "tokenizer: "),
        (another_rope, "rope: "),
    ],
)
def test_another_model_is_refused_and_the_field_named(
    made, tiny_model, branching_log, tmp_path, change, field
) -> None:
    other = Path(shutil.copytree(tiny_model, tmp_path / "tiny-llama"))
    change(other)
    shards = made / "shards"
    served = kvtool("serve", "--port", 0, "--shards", shards, "--model", other)
    assert served.exit_code == 2 and field in served.stderr
    added = kvtool(
        "prewarm", "--model", other, "--logs", branching_log, "--block-size", 16, "--out", shards,
        "--signing-key", made / "key",
    )  # fmt: skip
    assert added.exit_code == 2 and field in added.stderr
    if field != "weights: ":
        return
    apart = tmp_path / "apart"
    again = kvtool("prewarm", "--model", other, "--logs", branching_log, "--block-size", 16, "--out", apart)
    assert again.exit_code == 0, again.stderr
    difference = kvtool("shards", "diff", shards, apart, "--output-format", "json")
    assert difference.exit_code == 1
    assert [name.split(":")[0] for name in json.loads(difference.stdout)["fields"]] == ["weights"]
    merged = kvtool("shards", "merge", apart, shards, "--out", tmp_path / "m", "--signing-key", made / "key")
    assert merged.exit_code == 2 and field in merged.stderr and not (tmp_path / "m").exists()


def test_another_template_or_dtype_is_refused_and_the_field_named(made, tiny_model, tmp_path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    serve = ["serve", "--port", 0, "--shards", made / "shards", "--model", tiny_model]
    other = kvtool(*serve, "--chat-template", template)
    assert other.exit_code == 2 and "chat_template: " in other.stderr
    narrow = kvtool(*serve, "--dtype", "bf16")
    assert narrow.exit_code == 2 and "dtype: float32 / bfloat16" in narrow.stderr


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "code", "field"),
    [
        (lambda folder: flip(folder / "shard-00000.safetensors", -9), 1, "checksum"),
        (lambda folder: flip(folder / "shard-00000.safetensors", 100), 1, "header"),
        (lambda folder: (folder / "shard-00000.safetensors").unlink(), 1, "file"),
        (lambda folder: (folder / "index.parquet").unlink(), 2, "index.parquet"),
        (lambda folder: flip(folder / "index.parquet", 200), 2, "index.parquet: digest"),
        (lambda folder: flip(folder / "manifest.json", 200), 2, "manifest.json"),
        (lambda folder: (folder / "manifest.json").unlink(), 2, "no manifest.json"),
    ],
)
def test_damage_is_named_by_verify_and_signed_shards_are_not_served(
    folder, made, tiny_model, damage, code, field
) -> None:
    damage(folder)
    checked = kvtool("shards", "verify", folder, "--output-format", "json")
    assert checked.exit_code == code
    if code == 1:
        assert field in [fault["field"] for fault in json.loads(checked.stdout)["faults"]]
    else:
        assert field in checked.stderr
    served = kvtool(
        "serve", "--port", 0, "--shards", folder, "--model", tiny_model, "--signing-key", made / "key"
    )
    assert served.exit_code == 2
    assert ("shard-00000.safetensors: " if code == 1 else field) in served.stderr


def test_a_truncated_file_is_named(folder, made, tiny_model) -> None:
    path = folder / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    checked = kvtool("shards", "verify", folder, "--output-format", "json")
    faults = json.loads(checked.stdout)["faults"]
    assert checked.exit_code == 1 and {fault["field"] for fault in faults} == {"bytes"}


def test_a_key_that_others_can_read_is_warned_of(made) -> None:
    key = made / "key"
    for mode, warned in ((0o640, True), (0o602, True), (0o600, False)):
        key.chmod(mode)
        for command in ("verify", "gc"):
            checked = kvtool("shards", command, made / "shards", "--signing-key", key)
            assert checked.exit_code == 0
            assert (f"--signing-key {key}: others can read or change it" in checked.stderr) == warned


def test_serve_demands_the_signature(made, tiny_model, tmp_path) -> None:
    (tmp_path / "other").write_text(KEY[::-1])
    shards = made / "shards"
    wrong = kvtool(
        "serve", "--port", 0, "--shards", shards, "--model", tiny_model, "--signing-key", tmp_path / "other"
    )
    assert wrong.exit_code == 2 and "signature: not made with this key" in wrong.stderr
    none = kvtool("serve", "--port", 0, "--model", tiny_model, "--signing-key", made / "key")
    assert none.exit_code == 2 and "there are no shards to be signed" in none.stderr

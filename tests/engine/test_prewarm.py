"""Prewarm on a tiny model: every token once, blocks as plain transformers has them, upkeep of a folder."""

import errno
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.engine import prewarm as prewarm_module
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.prewarm import PrewarmConfig, PrewarmResult, prewarm
from kvtool.engine.schedule import CHUNK_TOKENS, cut_pieces
from kvtool.engine.storage.codec import block_bytes, encode_block, encode_blocks, load_codec
from kvtool.engine.storage.files import exclusive
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.manifest import read_manifest
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.verify import verify
from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.requests import Request

BLOCK = 16


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


@pytest.fixture(scope="module")
def requests(branching_log: Path) -> list[Request]:
    return list(open_log([str(branching_log)]))


def plan_for(
    model: Model, requests: list[Request], codec: str = "raw", block_size: int = BLOCK, **limits: int
) -> Plan:
    workload = build_workload(requests, model.encoder, block_size)
    shape = Identity.of_model(model, block_size).shape
    made = load_codec({"codec": codec})
    config = PlanConfig(**limits)
    return make_plan(workload, config, lambda depth: block_bytes(made, shape, depth == 0), 1024)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Chunk]]:
    """Every forward that runs, as its chunks."""
    seen: list[list[Chunk]] = []
    real = Runner.step

    def step(self: Runner, batch: list[Chunk]) -> torch.Tensor:
        seen.append(list(batch))
        return real(self, batch)

    monkeypatch.setattr(Runner, "step", step)
    return seen


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def small_files(plan: Plan, codec: str = "raw") -> PrewarmConfig:
    return PrewarmConfig(codec, int(plan.bytes.sum()) // 3)


def computed(steps: list[list[Chunk]]) -> int:
    return sum(len(chunk.tokens) for batch in steps for chunk in batch)


def test_every_distinct_token_is_computed_exactly_once(model, requests, tmp_path, steps, monkeypatch) -> None:
    plan = plan_for(model, requests, min_requests=1)
    paths: Counter[tuple[int, ...]] = Counter()
    slots: dict[int, list[int]] = {}  # what stands in the arena
    real_step, real_copy = Runner.step, Arena.copy_from

    def step(self: Runner, batch: list[Chunk]) -> torch.Tensor:
        for chunk in batch:
            before = [token for slot in chunk.slots for token in slots.get(slot, [])][: chunk.start]
            path = [*before, *chunk.tokens.tolist()]
            paths.update(tuple(path[: at + 1]) for at in range(chunk.start, len(path)))
            for depth in range(chunk.start // BLOCK, len(path) // BLOCK):
                slots[chunk.slots[depth]] = path[depth * BLOCK : (depth + 1) * BLOCK]
        return real_step(self, batch)

    def copy_from(self: Arena, other: Arena, theirs: list[int], ours: list[int]) -> None:
        slots.update((ours[at], slots[slot]) for at, slot in enumerate(theirs))
        real_copy(self, other, theirs, ours)

    monkeypatch.setattr(Runner, "step", step)
    monkeypatch.setattr(Arena, "copy_from", copy_from)
    result = prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    distinct = set()
    for tokens in model.encoder.encode(requests):
        distinct.update(tuple(tokens[: at + 1].tolist()) for at in range(len(tokens)))
    assert set(paths) <= distinct
    assert max(paths.values()) == 1
    assert len(paths) == plan.forecast.tokens == len(plan) * BLOCK - plan.forecast.split_tokens
    assert plan.forecast.split_tokens > 0, "the log should have prompts that part inside a block"
    assert result == PrewarmResult(
        blocks=len(plan),
        new_blocks=len(plan),
        files=1,
        bytes=int(plan.bytes.sum()),
        tokens_computed=plan.forecast.tokens,
        tokens_again=0,
        tokens_loaded=0,
        bits_per_element=32.0,
        kl=0.0,
        up_to_date=False,
    )
    assert computed(steps) == plan.forecast.tokens < plan.forecast.tokens_unshared / 2
    assert max(map(len, steps)) > 1, "no two ends of prompts shared a forward"
    assert sum(map(len, steps)) == len(cut_pieces(plan))


def test_memory_is_one_path_and_one_forward_whatever_the_trie(model, requests, tmp_path, monkeypatch) -> None:
    plan = plan_for(model, requests)
    made: list[int] = []
    real = Arena.__init__

    def init(self: Arena, of: Model, slots: int, block_size: int) -> None:
        made.append(slots)
        real(self, of, slots, block_size)

    monkeypatch.setattr(Arena, "__init__", init)
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    assert made == [int(plan.depth.max()) + 1 + CHUNK_TOKENS // BLOCK]


def test_stored_blocks_are_what_plain_transformers_computes(model, requests, tmp_path, tiny_model) -> None:
    plan = plan_for(model, requests)
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    shards = open_shards(tmp_path / "s")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    chains: dict[bytes, list[int]] = {}
    for row in shards.rows:
        prefix = chains.get(row.parent, []) + row.tokens.tolist()
        chains[row.hash] = prefix
        if row.depth % 5 and row.hash in {other.parent for other in shards.rows}:
            continue  # some blocks of every chain, and all its ends
        with torch.inference_mode():
            cache = plain(torch.tensor([prefix]), use_cache=True).past_key_values
        for layer, (keys, values) in enumerate(shards.read_block(row.hash)):
            wanted = cache.layers[layer]
            assert (wanted.keys[0, :, -BLOCK:].transpose(0, 1) - keys).abs().max() < 1e-4
            assert (wanted.values[0, :, -BLOCK:].transpose(0, 1) - values).abs().max() < 1e-4


def test_index_says_who_uses_a_block(model, requests, tmp_path) -> None:
    plan = plan_for(model, requests)
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    encoded = model.encoder.encode(requests)
    chains: dict[bytes, list[int]] = {}
    for row in open_shards(tmp_path / "s").rows:
        prefix = chains.get(row.parent, []) + row.tokens.tolist()
        chains[row.hash] = prefix
        users = sum(
            tokens[: len(prefix)].tolist() == prefix and len(tokens) > len(prefix) for tokens in encoded
        )
        assert row.expected_hits == users >= 2


def test_a_second_run_does_nothing(model, requests, tmp_path, steps) -> None:
    plan = plan_for(model, requests)
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").iterdir()}
    steps.clear()
    result = prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    assert result.up_to_date and result.new_blocks == 0 and steps == []
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").iterdir()}


@pytest.mark.parametrize("codec", ["raw", "int8", "lossless"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_file_is_made_again_byte_for_byte(model, requests, tmp_path, steps, codec, number) -> None:
    plan = plan_for(model, requests, codec)
    folder = tmp_path / "s"
    prewarm(plan, model, folder, small_files(plan, codec))
    before = contents(folder)
    lost = read_manifest(folder).files[number]
    (folder / lost.name).unlink()
    steps.clear()
    result = prewarm(plan, model, folder, small_files(plan, codec))
    assert contents(folder) == before
    assert result.new_blocks == lost.rows
    assert lost.rows * BLOCK - plan.forecast.split_tokens <= result.tokens_computed <= lost.rows * BLOCK
    assert computed(steps) == result.tokens_computed + result.tokens_again
    assert (result.tokens_again > 0) == (codec == "int8" and number > 0)
    assert (result.tokens_loaded > 0) == (codec != "int8" and number > 0)


def test_a_truncated_file_is_made_again(model, requests, tmp_path) -> None:
    plan = plan_for(model, requests)
    folder = tmp_path / "s"
    prewarm(plan, model, folder, small_files(plan))
    before = contents(folder)
    path = folder / "shard-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    prewarm(plan, model, folder, small_files(plan))
    assert contents(folder) == before


def test_a_larger_plan_adds_only_new_blocks(model, requests, tmp_path, steps) -> None:
    folder = tmp_path / "s"
    small = plan_for(model, requests[:4])
    prewarm(small, model, folder, PrewarmConfig())
    first = (folder / "shard-00000.safetensors").read_bytes()
    steps.clear()
    large = plan_for(model, requests)
    result = prewarm(large, model, folder, PrewarmConfig())
    assert (folder / "shard-00000.safetensors").read_bytes() == first
    assert verify(folder) == []
    assert result.new_blocks == len(large) - len(small) and result.blocks == len(large)
    assert result.tokens_computed == computed(steps) == large.forecast.tokens - small.forecast.tokens
    assert result.tokens_loaded > 0 == result.tokens_again
    shards = open_shards(folder)
    assert shards.manifest.complete
    assert sorted(row.expected_hits for row in shards.rows) == sorted(large.hits.tolist())
    assert prewarm(large, model, folder, PrewarmConfig()).up_to_date
    again = prewarm(small, model, folder, PrewarmConfig())  # fewer hits expected, nothing computed
    assert again.new_blocks == 0 and not again.up_to_date
    assert verify(folder) == []


def test_a_damaged_ancestor_is_computed_and_not_built_upon(model, requests, tmp_path, steps) -> None:
    folder, clean = tmp_path / "s", tmp_path / "clean"
    small, large = plan_for(model, requests[:4]), plan_for(model, requests)
    for target in (folder, clean):
        prewarm(small, model, target, PrewarmConfig())
    path = folder / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[open_shards(folder).rows[0].offset] ^= 0x40
    path.write_bytes(data)
    damaged = prewarm(large, model, folder, PrewarmConfig())
    sound = prewarm(large, model, clean, PrewarmConfig())
    assert damaged.tokens_again > 0 and sound.tokens_again == 0
    assert (folder / "shard-00001.safetensors").read_bytes() == (
        clean / "shard-00001.safetensors"
    ).read_bytes()


def test_int8_children_are_computed_over_exact_parents(model, requests, tmp_path) -> None:
    plan = plan_for(model, requests)
    prewarm(plan, model, tmp_path / "raw", PrewarmConfig("raw"))
    result = prewarm(plan_for(model, requests, "int8"), model, tmp_path / "int8", PrewarmConfig("int8"))
    assert result.kl is None and 8 < result.bits_per_element < 11
    exact, coded = open_shards(tmp_path / "raw"), open_shards(tmp_path / "int8")
    codec, shape = load_codec({"codec": "int8"}), exact.manifest.identity.shape
    for row in coded.rows:
        expected = encode_block(codec, shape, exact.read_block(row.hash), row.depth == 0)
        assert coded.read_bytes(row) == expected


def test_a_forwards_blocks_are_coded_together(model, requests, tmp_path, monkeypatch) -> None:
    """On a GPU: a few launches for hundreds of blocks, and one copy of what they make."""
    counts: list[int] = []

    def counted(codec, shape, blocks, *rest):
        counts.append(len(blocks[0][0]))
        return encode_blocks(codec, shape, blocks, *rest)

    monkeypatch.setattr("kvtool.engine.prewarm.encode_blocks", counted)
    plan = plan_for(model, requests, "int8")
    result = prewarm(plan, model, tmp_path / "s", PrewarmConfig("int8"))
    assert sum(counts) == result.new_blocks == len(plan)
    assert len(counts) < len(plan) / 2 and max(counts) > 4


def test_codecs_may_mix_in_one_folder(model, requests, tmp_path) -> None:
    folder = tmp_path / "s"
    prewarm(plan_for(model, requests[:4]), model, folder, PrewarmConfig("raw"))
    prewarm(plan_for(model, requests, "int8"), model, folder, PrewarmConfig("int8"))
    assert verify(folder) == []
    shards = open_shards(folder)
    assert Counter(row.codec for row in shards.rows).keys() == {"raw", "int8"}
    for row in shards.rows:
        assert all(torch.isfinite(keys).all() for keys, _ in shards.read_block(row.hash))


def test_tenants_have_roots_of_their_own(model, requests, tmp_path) -> None:
    both = [replace(request, tenant=tenant) for tenant in ("acme", "zeta") for request in requests]
    plan = plan_for(model, both)
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    assert verify(tmp_path / "s") == []
    shards = open_shards(tmp_path / "s")
    identity = Identity.of_model(model, BLOCK)
    assert shards.manifest.roots == {"acme": identity.root("acme"), "zeta": identity.root("zeta")}
    assert len(shards.rows) == 2 * len(plan_for(model, requests))


def test_other_models_are_refused_by_field(model, requests, tmp_path, tiny_model) -> None:
    folder = tmp_path / "s"
    prewarm(plan_for(model, requests), model, folder, PrewarmConfig())
    bf16 = load_model(str(tiny_model), dtype="bfloat16")
    with pytest.raises(KvtoolError, match="dtype: float32 / bfloat16"):
        prewarm(plan_for(bf16, requests), bf16, folder, PrewarmConfig())
    with pytest.raises(KvtoolError, match="block_size: 16 / 8"):
        prewarm(plan_for(model, requests, block_size=8), model, folder, PrewarmConfig())
    for field in ("weights", "tokenizer", "chat_template", "rope", "config"):
        other = replace(model, fingerprint={**model.fingerprint, field: "other", "digest": "other"})
        with pytest.raises(KvtoolError, match=f"differ in {field}: .* / other"):
            prewarm(plan_for(model, requests), other, folder, PrewarmConfig())


def test_other_cuts_are_refused(model, requests, tmp_path, monkeypatch) -> None:
    prewarm(plan_for(model, requests), model, tmp_path / "s", PrewarmConfig())
    monkeypatch.setattr(prewarm_module, "chunking", lambda size: {"tokens": 64})
    with pytest.raises(KvtoolError, match="chunking: "):
        prewarm(plan_for(model, requests), model, tmp_path / "s", PrewarmConfig())


def test_strangers_files_are_not_touched(model, requests, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(KvtoolError, match=r"no shard directory: thesis\.txt"):
        prewarm(plan_for(model, requests), model, tmp_path, PrewarmConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made_and_a_full_disk_are_named(
    model, requests, tmp_path, monkeypatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvtoolError, match="file/s: Not a directory"):
        prewarm(plan_for(model, requests), model, tmp_path / "file" / "s", PrewarmConfig())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(KvtoolError, match=r"shard-00000\.safetensors: No space left"):
        prewarm(plan_for(model, requests), model, tmp_path / "s", PrewarmConfig())
    assert list((tmp_path / "s").iterdir()) == []


def test_an_error_of_the_model_ends_the_run_and_what_was_committed_stays(
    model, requests, tmp_path, monkeypatch
) -> None:
    plan = plan_for(model, requests)
    prewarm(plan, model, tmp_path / "whole", small_files(plan))
    forwards = 0
    real = Runner.step

    def step(self: Runner, batch: list[Chunk]) -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        if forwards == 4:
            raise MemoryError("out of memory")
        return real(self, batch)

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="out of memory"):
        patch.setattr(Runner, "step", step)
        prewarm(plan, model, tmp_path / "s", small_files(plan))
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "index.parquet", "manifest.json", "shard-00000.safetensors"
    }  # fmt: skip
    assert verify(tmp_path / "s") == [] and not read_manifest(tmp_path / "s").complete
    prewarm(plan, model, tmp_path / "s", small_files(plan))
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_two_writers_do_not_meet(model, requests, tmp_path) -> None:
    with exclusive(tmp_path / "s"), pytest.raises(KvtoolError, match="another process is writing"):
        prewarm(plan_for(model, requests), model, tmp_path / "s", PrewarmConfig())


def test_an_empty_plan_says_so(model, requests, tmp_path) -> None:
    with pytest.raises(KvtoolError, match="the plan is empty"):
        prewarm(plan_for(model, requests, min_requests=99), model, tmp_path / "s", PrewarmConfig())
    assert not (tmp_path / "s").exists()


def test_progress_reaches_the_plans_tokens(model, requests, tmp_path) -> None:
    plan = plan_for(model, requests)
    seen: list[int] = []
    prewarm(plan, model, tmp_path / "s", PrewarmConfig(), seen.append)
    assert seen == [BLOCK * done for done in range(1, len(plan) + 1)]


def test_bf16_blocks_come_back_bit_for_bit(requests, tmp_path, tiny_model) -> None:
    model = load_model(str(tiny_model), dtype="bfloat16")
    plan = plan_for(model, requests)
    result = prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    assert result.bits_per_element == 16
    shards = open_shards(tmp_path / "s")
    first = shards.rows[0]
    arena = Arena(model, int(plan.depth.max()) + 1, BLOCK)
    piece = cut_pieces(plan)[0]
    tokens = np.ravel(plan.tokens[piece.first : piece.last])
    Runner(model, arena).step([Chunk(tokens, 0, range(piece.last))])
    for (keys, values), (own_keys, own_values) in zip(
        shards.read_block(first.hash), arena.read_block(0), strict=True
    ):
        assert keys.dtype == torch.bfloat16
        assert torch.equal(keys, own_keys) and torch.equal(values, own_values)


def test_nothing_is_ever_unpickled() -> None:
    forbidden = re.compile(
        r"\bimport (pickle|dill|cloudpickle|joblib|shelve|marshal)\b|\b(pickle|torch|np|numpy)\.loads?\("
        r"|allow_pickle=True|trust_remote_code=True|\bread_pickle\b|weights_only=False"
    )
    sources = sorted((Path(__file__).parents[2] / "kvtool").rglob("*.py"))
    assert len(sources) > 30
    assert [str(path) for path in sources if forbidden.search(path.read_text(encoding="utf-8"))] == []

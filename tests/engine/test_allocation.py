"""Codecs per block: roles from provenance, who chooses and who judges, the ladder, what prewarm stores."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, Planner
from kvtool.engine import allocation
from kvtool.engine.allocation import (
    RUNGS,
    Allocation,
    GateFailed,
    Stored,
    Verdict,
    choose,
    layer_bits,
    uniform,
)
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.prewarm import PrewarmConfig, PrewarmResult, prewarm
from kvtool.engine.storage import maintenance
from kvtool.engine.storage.codec import Mixed, block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.verify import verify
from kvtool.engine.traffic import CALL_TAIL, ROLES, Traffic, read_traffic
from kvtool.engine.trials import TAIL, Continuation, Trials
from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.requests import Request

BLOCK = 16
POSITIONS = 1024


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[Request]:
    """Twelve conversations about two tools; every other one is answered by a call."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "when": {"type": "array", "items": {"enum": ["now"]}},
                    },
                },
            },
        }
        for name in ("weather", "trains")
    ]
    rows = []
    for number in range(12):
        opening = ["Where is it warm?", "I want to travel, but not far, and not today either."][number % 2]
        messages = [
            {"role": "system", "content": "You look things up."},
            {"role": "user", "content": opening},
            {"role": "assistant", "content": "Let me see what there is for you."},
            {"role": "user", "content": f"Yes, number {number}"},
        ]
        call = {"id": "c", "type": "function", "function": {"name": "trains", "arguments": "{}"}}
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        response = answer if number % 4 < 2 else {"role": "assistant", "content": "No."}
        rows.append({"model": "m", "messages": messages, "tools": tools, "response": response})
    path = tmp_path_factory.mktemp("log") / "tools.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(open_log([str(path)]))
    assert len(found) == 12 and found[0].output["tool_calls"]
    return found


@pytest.fixture(scope="module")
def planner(model: Model, requests: list[Request]) -> Planner:
    return Planner(build_workload(requests, model.encoder, BLOCK), POSITIONS)


@pytest.fixture(scope="module")
def plan(model: Model, planner: Planner) -> Plan:
    shape = Identity.of_model(model, BLOCK).shape
    raw = load_codec({"codec": "raw"})
    return planner.plan(PlanConfig(), lambda depth: block_bytes(raw, shape, depth == 0))


def test_protected_are_the_blocks_of_system_and_tools(
    plan: Plan, model: Model, requests: list[Request]
) -> None:
    traffic = read_traffic(plan, requests, model.encoder, ["system", "tools"], POSITIONS)
    (rendered, *_) = [model.encoder.render(request) for request in requests]
    assert {span.role for span in rendered.spans} == {"system", "tools", "user", "assistant"}
    ends = max(span.end for span in rendered.spans if span.role in ("system", "tools"))
    last = len(model.encoder.tokenizer.encode(rendered.text[:ends])) - 1
    assert traffic.protected.tolist() == [depth <= last // BLOCK for depth in plan.depth.tolist()]
    assert 0 < traffic.protected.sum() < len(plan)
    only_system = read_traffic(plan, requests, model.encoder, ["system"], POSITIONS)
    assert 0 < only_system.protected.sum() < traffic.protected.sum()
    users = read_traffic(plan, requests, model.encoder, ["user"], POSITIONS).protected
    first = next(span.start for span in rendered.spans if span.role == "user")
    begin = len(model.encoder.tokenizer.encode(rendered.text[:first])) // BLOCK
    assert users.tolist()[begin] and not users[:begin].any()
    assert not read_traffic(plan, requests, model.encoder, [], POSITIONS).protected.any()
    assert set(ROLES) == {"system", "tools", "user", "assistant", "tool"}


def test_those_who_choose_do_not_judge(plan: Plan, model: Model, requests: list[Request]) -> None:
    traffic = read_traffic(plan, requests, model.encoder, [], POSITIONS)
    encoded = [tokens.tolist() for tokens in model.encoder.encode(requests)]

    def asks(one: object) -> list[int]:
        return [*plan.tokens[list(one.rows)].ravel().tolist(), *one.tokens.tolist()]

    *probes, tools = traffic.probes
    assert len(probes) == len(traffic.gates) == 5
    chosen = [encoded.index(asks(one)) for one in probes]
    held_back = [encoded.index(asks(one)) for one in traffic.gates]
    assert not set(chosen) & set(held_back)
    assert sum(one.call for one in probes) == sum(one.call for one in traffic.gates) == 3
    assert all(one.call == (number % 4 < 2) for one, number in zip(probes, chosen, strict=True))
    made_up = model.encoder.tokenizer.decode(asks(tools))
    for name in ("weather", "trains"):
        assert f'{{"name": "{name}", "arguments": {{"city": "city", "when": ["now"]}}}}' in made_up


def test_no_continuation_passes_the_models_last_position(
    plan: Plan, model: Model, requests: list[Request]
) -> None:
    longest = max(int(plan.depth.max()) + 1, 1) * BLOCK
    traffic = read_traffic(plan, requests, model.encoder, [], longest + 30)
    for one in (*traffic.probes, *traffic.gates):
        assert len(one.tokens) >= 1
    for one in traffic.gates:
        assert len(one.rows) * BLOCK + len(one.tokens) + 24 <= longest + 30


def test_bits_go_where_most_damage_is_left() -> None:
    profile = np.array([[1.0, 0.0], [0.5, 0.4], [16.0, 3.0], [0.1, 0.0], [3.9, 0.0], [0.3, 0.2]])
    # Left after each bit: 1, 0.9, 19, 0.1, 3.9, 0.5; 4.75; 1.19, then the cap; 0.975; 0.25; 0.225; 0.125
    assert layer_bits(profile) == [5, 5, 6, 4, 6, 4]
    assert layer_bits(np.ones((3, 2))) == [5, 5, 5]
    assert layer_bits(np.zeros((2, 2))) == [6, 4]
    assert np.mean(layer_bits(np.random.default_rng(0).random((31, 2)) ** 8)) == 5


@pytest.fixture(scope="module")
def trials(plan: Plan, model: Model, requests: list[Request]) -> tuple[Traffic, Trials]:
    traffic = read_traffic(plan, requests, model.encoder, ["system", "tools"], POSITIONS)
    return traffic, Trials(model, plan, [*traffic.probes, *traffic.gates])


PROFILE = np.array([[9.0, 1.0], [1.0, 1.0]])
LAYERS = ["int6", "int4"]


def kinds_of(found: Allocation, rows: np.ndarray) -> Counter[str]:
    """Codecs of some rows; a mixed one's name is that of the ladder."""
    return Counter(found.names[row].split("-")[0] for row in rows)


def kinds_on(rung: int, rows: int) -> dict[str, int]:
    base, lift, share = RUNGS[rung]
    lifted = round(share * rows)
    return {kind: count for kind, count in ((base, rows - lifted), (lift, lifted)) if count}


def verdicts(monkeypatch: pytest.MonkeyPatch, traffic: Traffic, holds: int) -> list[int]:
    """Gates that hold from the rung `holds` on; the number of every rung that is judged."""
    open_rows = np.flatnonzero(~traffic.protected)
    judged: list[int] = []

    def judge(trials: object, gates: object, codec_of: Callable[[int], object], *limits: float) -> Verdict:
        kinds = kinds_of(codec_of.__self__, open_rows)
        judged.append(next(at for at in range(len(RUNGS)) if kinds == kinds_on(at, len(open_rows))))
        return Verdict(0.1 if judged[-1] >= holds else 2.0, 2.0, 0, 0, 1, limits[0], 0.0, limits[1])

    monkeypatch.setattr(allocation, "judge", judge)
    return judged


@pytest.mark.parametrize("rung", range(len(RUNGS)))
def test_the_lowest_rung_that_holds_is_found_in_a_few_trials(plan, trials, monkeypatch, rung) -> None:
    traffic, running = trials
    open_rows = np.flatnonzero(~traffic.protected)
    sensitivity = allocation.measure(plan, traffic.probes, running, lambda row: load_codec({"codec": "int4"}))
    judged = verdicts(monkeypatch, traffic, rung)
    found = allocation.allocate(plan, traffic, running, PROFILE, 1.0)
    assert found.verdict.holds and len(judged) <= 5
    assert rung in judged and (rung == 0 or rung - 1 in judged)
    assert all(found.names[row] == "half" for row in np.flatnonzero(traffic.protected))
    assert kinds_of(found, open_rows) == kinds_on(rung, len(open_rows))
    lifted = [row for row in open_rows if found.names[row] == RUNGS[rung][1]]
    if 0 < len(lifted) < len(open_rows):
        least = min(sensitivity[lifted])
        assert all(sensitivity[row] <= least for row in open_rows if row not in lifted)
    sizes = found.sizes(plan, running.shape)
    expected = [
        block_bytes(found.codec_of(row), running.shape, plan.depth[row] == 0) for row in range(len(plan))
    ]
    assert sizes.tolist() == expected
    mixed = [codec for codec in found.codecs.values() if isinstance(codec, Mixed)]
    assert all(list(codec.layers) == LAYERS for codec in mixed)


@pytest.mark.parametrize("rung", [0, 3, 8, 12])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_a_budget_is_filled_with_blocks_of_the_rung_that_is_chosen(
    planner, plan, trials, monkeypatch, rung, share
) -> None:
    """Judged are the very blocks that fit; none of those left out would."""
    traffic, running = trials
    verdicts(monkeypatch, traffic, rung)
    judge = allocation.judge
    judged: list[list[tuple[int, ...]]] = []

    def seen(trials: object, gates: list[Continuation], *rest: object) -> Verdict:
        judged.append([one.rows for one in gates])
        return judge(trials, gates, *rest)

    monkeypatch.setattr(allocation, "judge", seen)
    fitted: list[tuple[np.ndarray, Plan]] = []
    budget = int(share * plan.bytes.sum() / 4)

    def fit(made: Allocation) -> Plan:
        sizes = made.sizes(plan, running.shape)
        again = planner.plan(PlanConfig({"disk": budget}), lambda depth: 0, replace(plan, bytes=sizes))
        fitted.append((sizes, again))
        return again

    found = allocation.allocate(plan, traffic, running, PROFILE, 1.0, fit=fit)
    (sizes,) = [sizes for sizes, again in fitted if again is found.plan]
    small = found.plan
    assert found.verdict.holds and len(found.names) == len(found.kl) == len(small) > 0
    assert found.sizes(small, running.shape).tolist() == small.bytes.tolist()
    kept = np.isin(plan.node, small.node)
    left = budget - int(small.bytes.sum())
    assert left >= 0 and small.bytes.tolist() == [
        int(sizes[plan.node == node][0]) for node in small.node.tolist()
    ]
    for row in np.flatnonzero(~kept):
        if plan.parent[row] < 0 or kept[plan.parent[row]]:
            assert sizes[row] > left
    assert [one.rows for one in traffic.behind(plan, kept).gates] in judged


def test_a_budget_without_room_for_a_block_is_refused(planner, plan, trials) -> None:
    traffic, running = trials
    with pytest.raises(KvtoolError, match="behind the blocks that fit --budget"):
        allocation.allocate(
            plan,
            traffic,
            running,
            PROFILE,
            1.0,
            fit=lambda made: planner.plan(
                PlanConfig({"disk": 9}),
                lambda depth: 0,
                replace(plan, bytes=made.sizes(plan, running.shape)),
            ),
        )


def test_continuations_begin_where_the_stored_blocks_end(plan, model, requests) -> None:
    traffic = read_traffic(plan, requests, model.encoder, [], POSITIONS)
    encoded = {tuple(tokens.tolist()) for tokens in model.encoder.encode(requests)}
    for kept_depth in (0, 1, 5, int(plan.depth.max())):
        seen = traffic.behind(plan, plan.depth <= kept_depth)
        assert len(seen.gates) == len(traffic.gates)
        for before, one in zip(traffic.gates, seen.gates, strict=True):
            assert len(one.rows) == min(len(before.rows), kept_depth + 1)
            asked = (*plan.tokens[list(one.rows)].ravel().tolist(), *one.tokens.tolist())
            assert any(whole[: len(asked)] == asked for whole in encoded)
            assert (asked in encoded) if one.call else len(one.tokens) <= TAIL
            between = (len(before.rows) - len(one.rows)) * BLOCK + len(before.tokens)
            assert one.call == (before.call and between <= CALL_TAIL)
    assert not traffic.behind(plan, plan.depth < 0).gates


def test_rungs_take_more_and_more_bytes() -> None:
    bits = {"int4": 4.5, "mixed": 5.5, "int6": 6.5, "int8": 8.25, "half": 16}
    average = [(1 - share) * bits[base] + share * bits[lift] for base, lift, share in RUNGS]
    assert average == sorted(set(average)) and average[0] == 4.5 and average[-1] == 16


def test_the_last_rung_is_judged_though_none_holds(plan, trials, monkeypatch) -> None:
    traffic, running = trials
    judged = verdicts(monkeypatch, traffic, len(RUNGS))
    assert not allocation.allocate(plan, traffic, running, PROFILE, 1.0).verdict.holds
    assert judged[-1] == len(RUNGS) - 1


@pytest.mark.parametrize(
    ("kl", "calls_kl", "unchanged", "holds"),
    [(0.9, 0.09, 3, True), (1.1, 0.0, 3, False), (0.9, 0.11, 3, False), (0.0, 0.0, 2, False)],
)
def test_a_gate_holds_all_that_it_promises(kl: float, calls_kl: float, unchanged: int, holds: bool) -> None:
    assert Verdict(kl, 5.0, 3, unchanged, 4, 1.0, calls_kl, 0.1).holds == holds


def test_blocks_share_out_what_the_gate_measured(plan, trials, monkeypatch) -> None:
    traffic, running = trials
    verdicts(monkeypatch, traffic, 1)
    found = allocation.allocate(plan, traffic, running, PROFILE, 1.0)
    assert (found.kl >= 0).all() and found.verdict.kl == 0.1
    chains = [found.kl[list(one.rows)].sum() for one in traffic.gates]
    assert np.mean(chains) == pytest.approx(0.1, rel=1e-6)


def test_blocks_that_no_probe_reached_are_promoted_first(plan, trials, monkeypatch) -> None:
    traffic, running = trials
    monkeypatch.setattr(
        allocation, "measure", lambda plan, *_: np.where(plan.depth == plan.depth.max(), np.nan, 1.0)
    )
    judged: list[Allocation] = []

    def judge(trials: object, gates: object, codec_of: Callable[[int], object], *limits: float) -> Verdict:
        judged.append(codec_of.__self__)
        return Verdict(0.1, 0.1, 0, 0, 1, limits[0], 0.0, limits[1])

    monkeypatch.setattr(allocation, "judge", judge)
    monkeypatch.setattr(allocation, "RUNGS", [("int4", "int6", 0.125), ("half", "half", 1.0)])
    found = allocation.allocate(
        plan, replace(traffic, protected=traffic.protected & False), running, PROFILE, 1.0
    )
    deepest = np.flatnonzero(plan.depth == plan.depth.max())
    assert all(found.names[row] == "int6" for row in deepest)
    assert Counter(found.names)["int6"] == len(deepest) + round((len(plan) - len(deepest)) / 8)


def stored(
    plan: Plan,
    model: Model,
    requests: list[Request],
    folder: Path,
    codec: str,
    protect: list[str],
    max_kl: float | None,
) -> PrewarmResult:
    def chosen(before: Stored) -> Allocation:
        return choose(plan, model, codec, lambda: requests, protect, max_kl, before)

    return prewarm(plan, model, folder, PrewarmConfig(shard_bytes=60_000), choose=chosen)


@pytest.fixture
def cached_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "layer_profile", lambda model, codec: PROFILE)


def test_auto_is_stored_verified_and_made_again_byte_for_byte(
    plan, model, requests, tmp_path, cached_profile
) -> None:
    result = stored(plan, model, requests, tmp_path / "a", "auto", ["system", "tools"], 10.0)
    assert verify(tmp_path / "a") == []
    assert result.verdict.holds and result.tokens_measured > 0 and result.kl > 0
    shards = open_shards(tmp_path / "a")
    names = Counter(row.codec for row in shards.rows)
    assert names["half"] > 0 and len(names) == 2 and set(shards.manifest.codecs) == set(names)
    assert all(row.kl is not None for row in shards.rows)
    for row in shards.rows:
        assert len(shards.read_block(row.hash)) == 2
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert len([name for name in files if name.endswith("safetensors")]) > 1
    (tmp_path / "a" / "shard-00001.safetensors").unlink()
    stored(plan, model, requests, tmp_path / "a", "auto", ["system", "tools"], 10.0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files
    again = stored(plan, model, requests, tmp_path / "a", "auto", ["system", "tools"], 10.0)
    assert again.up_to_date and again.tokens_measured == 0 and 0 < again.kl < 10 * result.kl


def test_a_damaged_grid_is_found(plan, model, requests, tmp_path, cached_profile) -> None:
    stored(plan, model, requests, tmp_path, "auto", [], 10.0)
    shards = open_shards(tmp_path)
    row = shards.rows[-1]
    path = tmp_path / f"shard-{row.shard:05d}.safetensors"
    for place in (0, row.bytes - 1):
        data = bytearray(path.read_bytes())
        data[row.offset + place] ^= 1
        path.write_bytes(data)
        faults = verify(tmp_path)
        assert [(fault.block, fault.field) for fault in faults] == [(row.hash, "checksum")]
        data[row.offset + place] ^= 1
        path.write_bytes(data)
    assert verify(tmp_path) == []


def test_a_gate_that_fails_stores_nothing(plan, model, requests, tmp_path) -> None:
    with pytest.raises(GateFailed, match=r"mean KL .* where --max-kl is 1e-09"):
        stored(plan, model, requests, tmp_path / "s", "k3v2", [], 1e-9)
    assert not (tmp_path / "s").exists()
    with pytest.raises(GateFailed, match=r"3 of 3 greedy tool calls change"):
        stored(plan, model, requests, tmp_path / "s", "k3v2", [], 50.0)
    silent = [replace(request, output=None) for request in requests]
    result = stored(plan, model, silent, tmp_path / "s", "k3v2", [], 50.0)
    assert result.new_blocks == len(plan) and result.kl > 0


def test_the_gate_judges_stored_blocks_as_they_are_stored(
    plan, model, requests, tmp_path, cached_profile
) -> None:
    """Exact codecs for the blocks that are new do not vouch for those that lie there in three bits."""
    silent = [replace(request, output=None) for request in requests]
    prewarm(plan, model, tmp_path, PrewarmConfig("k3v2", shard_bytes=60_000))
    lossy = open_shards(tmp_path)
    maintenance.collect_garbage(tmp_path, keep_bytes=sum(row.bytes for row in lossy.rows[: len(plan) // 2]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for codec in ("auto", "raw"):
        with pytest.raises(GateFailed) as failed:
            stored(plan, model, silent, tmp_path, codec, [], 2e-4)
        assert failed.value.verdict.kl > 1e-3, "of the half that is k3v2"
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    result = stored(plan, model, silent, tmp_path, "raw", [], 50.0)
    assert result.kl == failed.value.verdict.kl and result.kept == {"k3v2": len(plan) // 2}


def test_protection_with_a_plain_codec_is_the_seeds_scheme(plan, model, requests, tmp_path) -> None:
    result = stored(plan, model, requests, tmp_path, "int8", ["system", "tools"], None)
    assert result.verdict is None and result.kl is None
    protected = read_traffic(plan, requests, model.encoder, ["system", "tools"], POSITIONS).protected
    counted = Counter(row.codec for row in open_shards(tmp_path).rows)
    assert counted == {"half": int(protected.sum()), "int8": int((~protected).sum())}
    plain = uniform("int8", plan, Identity.of_model(model, BLOCK).shape)
    assert set(plain.names) == {"int8"} and np.isnan(plain.kl).all()


def test_folders_of_any_codecs_merge_and_are_cleaned(plan, model, requests, tmp_path, cached_profile) -> None:
    auto, lossless, merged = tmp_path / "auto", tmp_path / "lossless", tmp_path / "merged"
    stored(plan, model, requests, auto, "auto", [], 10.0)
    prewarm(plan, model, lossless, PrewarmConfig("lossless", shard_bytes=60_000))
    sources = [open_shards(auto), open_shards(lossless)]
    assert len(maintenance.diff(*sources).changed) == len(plan)
    maintenance.merge(sources[::-1], merged, limit=60_000)
    assert verify(merged) == []
    exact = {row.codec for row in open_shards(merged).rows}
    assert exact == {"lossless"} and set(sources[0].manifest.codecs) < set(
        open_shards(merged).manifest.codecs
    )
    for row in open_shards(merged).rows:  # lossless blocks are the model's own, auto's are near them
        for side in zip(
            open_shards(merged).read_block(row.hash), sources[0].read_block(row.hash), strict=True
        ):
            assert (side[0][0] - side[1][0]).abs().max() < 1
    maintenance.collect_garbage(auto, keep_bytes=sum(row.bytes for row in sources[0].rows) // 2)
    assert verify(auto) == [] and 0 < len(open_shards(auto).rows) < len(plan)

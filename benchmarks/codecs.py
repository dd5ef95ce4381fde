"""What each codec does to the model's answers: bits and mean KL, on continuations that chose nothing.

    python benchmarks/codecs.py [--prefix 1024] [--tail 128] [--codecs int8 int4 ... auto]

Each case is a prefix of blocks and what may follow it. Tool calls: tools of samples/airline-chat.jsonl behind
as much of its policy as fills the prefix, followed by its conversations up to a tool call. Code and prose:
sources and help topics of the standard library, followed by their own next tokens. Every token of a
continuation is teacher-forced; KL is against the same model over exact blocks, nats per token. Nothing is
protected; `auto` chooses by other conversations, or other passages of the same text, and is judged on those
that are left, greedy answers of tool calls included.
"""

import argparse
import inspect
import json
import statistics
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import TokenIds
from kvtool.engine.allocation import AUTO, FLOOR, MAX_KL, Allocation, allocate, uniform
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.profile import layer_profile
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.traffic import Traffic, read_traffic
from kvtool.engine.trials import Continuation, Trials
from kvtool.logs.reader import open_log
from kvtool.requests import Message, Request, Source

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 32
HELD_OUT = 2
"""Every other conversation judges only."""


@dataclass(frozen=True)
class Chain:
    """One prefix as a plan of its own."""

    tokens: NDArray[np.uint32]
    block_size: int = BLOCK_SIZE
    tenants: Sequence[str] = ("",)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> NDArray[np.int32]:
        """Blocks above each."""
        return np.arange(len(self), dtype=np.int32)

    @property
    def parent(self) -> NDArray[np.int64]:
        """Row above each."""
        return np.arange(len(self)) - 1

    @property
    def tenant(self) -> NDArray[np.int32]:
        """All the same."""
        return np.zeros(len(self), np.int32)


@dataclass(frozen=True)
class Case:
    """chooses: what `auto` may see. judges: continuations that it does not see."""

    kind: str
    chain: Chain
    chooses: list[Request]
    judges: list[Continuation]


def prefix_of(tokens: TokenIds, length: int) -> Chain:
    """The leading blocks."""
    blocks = length // BLOCK_SIZE
    return Chain(tokens[: blocks * BLOCK_SIZE].reshape(blocks, BLOCK_SIZE))


def tool_calls(model: Model, length: int, tail: int, largest_first: bool) -> Case:
    """All conversations of the sample behind one head: tools, the smallest or largest first, then policy."""
    rows = [row for row in open_log([str(ROOT / "samples/airline-chat.jsonl")]) if row.messages]
    tools = sorted(rows[0].tools or [], key=lambda tool: len(json.dumps(tool)), reverse=largest_first)
    policy = str((rows[0].messages or [{}])[0]["content"]).split(" ")

    def head(words: int) -> Message:
        return {"role": "system", "content": " ".join(policy[:words])}

    def tokens_of(words: int) -> int:
        return len(model.encoder.tokenizer.encode(model.encoder.template.render([head(words)], tools).text))

    while tokens_of(20) > length:
        tools = tools[:-1]
    words = next(words for words in range(20, len(policy)) if tokens_of(words) >= length + 2)
    chooses, judges = [], []
    chain = None
    sessions = sorted({str(row.session) for row in rows})
    for row in rows:
        request = replace(row, messages=[head(words), *(row.messages or [])[1:]], tools=tools)
        (tokens,) = model.encoder.encode([request])
        chain = chain or prefix_of(tokens, length)
        begin = len(chain) * BLOCK_SIZE
        assert np.array_equal(tokens[:begin], chain.tokens.ravel())
        call = isinstance(row.output, dict) and bool(row.output.get("tool_calls"))
        if sessions.index(str(row.session)) % HELD_OUT:
            chooses.append(request)
        elif call and len(tokens) - begin <= 2 * tail:
            judges.append(Continuation(tuple(range(len(chain))), tokens[begin:], call))
    assert chain is not None
    return Case("tool calls", chain, chooses, judges)


def passages(kind: str, text: str, model: Model, length: int, tail: int) -> Case:
    """A long text: what follows the prefix judges, later passages choose."""
    tokens = model.encoder.tokenizer.encode(text)
    chain = prefix_of(tokens, length)
    prefix = chain.tokens.ravel()
    rest = tokens[len(prefix) :]
    chooses = [
        Request(str(at), Source(kind, at), token_ids=np.concatenate([prefix, rest[at : at + tail]]))
        for at in range(2 * tail, len(rest) - tail, tail)
    ]
    return Case(kind, chain, chooses[:16], [Continuation(tuple(range(len(chain))), rest[:tail])])


def cases(model: Model, length: int, tail: int) -> list[Case]:
    """Two heads with tools, three sources, three topics."""
    longest = sorted(topics.values(), key=len, reverse=True)
    return [
        *(tool_calls(model, length, tail, largest_first) for largest_first in (False, True)),
        *(
            passages("code", inspect.getsource(module)[4000:40000], model, length, tail)
            for module in (statistics, tarfile, argparse)
        ),
        *(passages("prose", text[300:40000], model, length, tail) for text in longest[:3]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prefix", default=1024, type=int)
    parser.add_argument("--tail", default=128, type=int)
    parser.add_argument("--max-kl", default=MAX_KL, type=float, help="gate of auto")
    names = [name for name in CODECS.names() if name not in ("raw", "lossless")]
    parser.add_argument("--codecs", nargs="*", default=[*names, AUTO])
    options = parser.parse_args()
    model = load_model(options.model)
    found: dict[str, dict[str, list[tuple[float, float, bool]]]] = {name: {} for name in options.codecs}
    for case in cases(model, options.prefix, options.tail):
        traffic = read_traffic(case.chain, case.chooses, model.encoder, (), model.config.max_positions)
        trials = Trials(model, case.chain, [*traffic.probes, *traffic.gates, *case.judges])
        for name in options.codecs:
            started = time.process_time()
            chosen = choice(name, case, traffic, trials, options.max_kl)
            damages = [trials.damage(one, chosen.codec_of) for one in case.judges]
            bits = 8 * float(chosen.sizes(case.chain, trials.shape).sum()) / elements(case, trials.shape)
            found[name].setdefault(case.kind, []).extend((bits, one.kl, one.same_answer) for one in damages)
            gate = "" if chosen.verdict is None else f"  gate {chosen.verdict}"
            calls = [one.same_answer for asked, one in zip(case.judges, damages, strict=True) if asked.call]
            print(
                f"{case.kind:10} {name:8} {bits:6.3f} bits  KL {np.mean([one.kl for one in damages]):.5f}  "
                f"calls unchanged {sum(calls)}/{len(calls)}  {time.process_time() - started:.0f} s{gate}",
                flush=True,
            )
    for name, kinds in found.items():
        columns = []
        for kind, rows in kinds.items():
            bits, kls = (np.mean([row[column] for row in rows]) for column in (0, 1))
            columns.append(f"{kind} {kls:.5f} at {bits:.2f} bits")
        print(f"{name:8} {'  '.join(columns)}")


def choice(name: str, case: Case, traffic: Traffic, trials: Trials, max_kl: float) -> Allocation:
    """The codec itself, or what auto allocates."""
    if name != AUTO:
        return uniform(name, case.chain, trials.shape)
    return allocate(case.chain, traffic, trials, layer_profile(trials.model, FLOOR), max_kl)


def elements(case: Case, shape: BlockShape) -> int:
    """Numbers in all blocks of the prefix."""
    return len(case.chain) * shape.elements


if __name__ == "__main__":
    main()

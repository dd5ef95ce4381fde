"""Trials: a continuation computed over exact blocks and over restored ones, and how far the answers part.

The exact blocks of every prefix that is tried are computed once and kept, those that prefixes share only
once; whatever precision is tried is restored from them, never from another restored block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvtool.blocks import TokenIds
from kvtool.engine.calibration import query_guide
from kvtool.engine.compute.arena import Arena, Block
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.schedule import CHUNK_TOKENS
from kvtool.engine.storage.codec import BlockCodec, decode_block, encode_block, is_steered
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.rounding import Guide

TAIL = 128
"""Tokens of a continuation that are compared: with the whole vocabulary's logits, memory for some MB."""

ANSWER = 24
"""Tokens of a greedy answer: a tool's name and its first arguments, where wrong calls show."""


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """What a prompt of the log says behind stored blocks: rows of the plan from its first block on, and
    tokens uint32 [n >= 1]. call: the model is to call a tool next, so its greedy answer is compared too.
    """

    rows: tuple[int, ...]
    tokens: TokenIds
    call: bool = False


@dataclass(frozen=True, slots=True)
class Damage:
    """kl: mean nats per token of the continuation and its greedy answer; answer_kl: of the answer alone.
    same_answer: the greedy answer is the exact one.
    """

    kl: float
    answer_kl: float
    same_answer: bool


class Blocks(Protocol):
    """A plan, or a chain like one."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """Token ids, uint32 [n, block_size]."""
        ...

    @property
    def depth(self) -> NDArray[np.int32]:
        """Blocks above each, int32 [n]."""
        ...


class Trials:
    """Runs continuations over blocks of `plan` in any precision."""

    def __init__(self, model: Model, plan: Blocks, asked: Sequence[Continuation]) -> None:
        """`asked`: all that will be tried; their longest sizes the arena."""
        self.model = model
        self.plan = plan
        self.shape = Identity.of_model(model, plan.block_size).shape
        longest = max(len(one.rows) * plan.block_size + len(one.tokens) for one in asked) + ANSWER
        self.arena = Arena(model, -(-longest // plan.block_size), plan.block_size)
        self._guide: Guide | None = None
        self._runner = Runner(model, self.arena)
        self._exact: dict[int, Block] = {}
        self._restored: dict[int, tuple[BlockCodec, Block]] = {}
        self._truth: dict[tuple[tuple[int, ...], bytes, bool], tuple[Tensor, TokenIds]] = {}
        self.tokens = 0
        """Tokens computed so far, continuations included."""

    def exact(self, rows: Sequence[int]) -> list[Block]:
        """The blocks of a prefix as the model makes them. It is computed from where it is not known."""
        size = self.plan.block_size
        known = next((at for at, row in enumerate(rows) if row not in self._exact), len(rows))
        if known < len(rows):
            self._place([self._exact[row] for row in rows[:known]])
            tokens = np.ravel(self.plan.tokens[list(rows[known:])])
            for start in range(0, len(tokens), CHUNK_TOKENS):
                self._run(tokens[start : start + CHUNK_TOKENS], known * size + start, 0)
            for slot in range(known, len(rows)):
                self._exact[rows[slot]] = self.arena.read_block(slot)
        return [self._exact[row] for row in rows]

    def restored(self, row: int, codec: BlockCodec) -> Block:
        """A block of an exact prefix as it comes back from a shard."""
        held = self._restored.get(row)
        if held is None or held[0] != codec:
            first = bool(self.plan.depth[row] == 0)
            if self._guide is None and is_steered(codec, self.shape):
                self._guide = query_guide(self.model)
            data = encode_block(codec, self.shape, self._exact[row], first, self._guide)
            held = (codec, list(decode_block(codec, self.shape, bytearray(data), first)))
            self._restored[row] = held
        return held[1]

    def damage(self, asked: Continuation, codec_of: Callable[[int], BlockCodec]) -> Damage:
        """What the model says over blocks in `codec_of` precision, against what it says over exact ones."""
        exact = self.exact(asked.rows)
        truth, answer = self._truth_of(asked, exact)
        tokens = np.concatenate([asked.tokens, answer])
        logits = self.over([self.restored(row, codec_of(row)) for row in asked.rows], tokens)
        found = torch.log_softmax(logits, -1)
        lost = (truth.exp() * (truth - found)).sum(-1)
        places = slice(-len(answer) - 1, None)
        same = bool(torch.equal(truth[places].argmax(-1), found[places].argmax(-1)))
        kl, answer_kl = (max(float(part.mean()), 0.0) for part in (lost, lost[places]))
        return Damage(kl, answer_kl, same or not asked.call)

    def over(self, blocks: Sequence[Block], tokens: TokenIds) -> Tensor:
        """Logits [n, vocab] of tokens that follow the given blocks; of the last TAIL + ANSWER, if more."""
        self._place(blocks)
        return self._run(tokens, len(blocks) * self.plan.block_size, min(len(tokens), TAIL + ANSWER))

    def _truth_of(self, asked: Continuation, exact: list[Block]) -> tuple[Tensor, TokenIds]:
        """Log-probabilities over exact blocks of the continuation and of the greedy answer behind it.

        An answer that a quantized prefix gives is the same if and only if each of its tokens, given those
        before it, is: so one forward over the exact answer compares it whole.
        """
        key = (asked.rows, asked.tokens.tobytes(), asked.call)
        if key not in self._truth:
            answer: list[int] = []
            logits = self.over(exact, asked.tokens)
            if asked.call:
                start = len(exact) * self.plan.block_size + len(asked.tokens)
                last = int(logits[-1].argmax())
                while len(answer) < ANSWER and last not in self.model.stop_tokens:
                    answer.append(last)
                    step = self._run(np.array([last], np.uint32), start + len(answer) - 1, 1)
                    last = int(step[0].argmax())
                logits = self.over(exact, np.concatenate([asked.tokens, np.array(answer, np.uint32)]))
            self._truth[key] = (torch.log_softmax(logits, -1), np.array(answer, np.uint32))
        return self._truth[key]

    def _place(self, blocks: Sequence[Block]) -> None:
        for slot, block in enumerate(blocks):
            self.arena.write_block(slot, block)

    def _run(self, tokens: TokenIds, start: int, wanted: int) -> Tensor:
        slots = range(-(-(start + len(tokens)) // self.plan.block_size))
        self.tokens += len(tokens)
        return self._runner.step([Chunk(tokens, start, slots, wanted)]).clone()

"""One answer in the making: its tokens, where its keys and values are, and how its text goes out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.tiers import TieredLease
from kvtool.engine.compute.logprobs import TokenLogprob
from kvtool.engine.serving.text import Detokenizer, StopFilter

FinishReason = Literal["stop", "length", "cancelled", "failed"]

Choose = Callable[[Any, Sequence[int]], int]
"""Picks the next token from logits [vocab], given the tokens generated so far."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer. `cached` prompt tokens were read from the cache, not computed."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to an answer; the last one carries `finish` and `usage`."""

    text: str
    finish: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """A prompt and what follows it. The first group of fields is the caller's, the rest the scheduler's.

    emit: gets every Delta, in the scheduler's thread. max_tokens: at least 1. top_logprobs: None for none.
    session: counts into the blocks' sharing statistics. root: the chain's root, which names tenant and salt.
    tenant: whose turn it is; salts make no more of them.
    keep: seconds for which the session's blocks are to stay on the device after it; 0 ends the session.
    public: leading tokens, system prompt and tools, that the tenant may share with others.
    priority: lower ones are admitted first.
    fetched: its blocks are read while it waits for its turn. waited: its turn came before they did.
    `computed` tokens have keys and values in the lease's slots, or will have when the step that runs is over;
    `cached` of the prompt were found there. `pending` tokens, at most one, that step will choose.
    """

    prompt: TokenIds
    root: BlockHash
    max_tokens: int
    choose: Choose
    emit: Callable[[Delta], None]
    ends: frozenset[int]
    detokenizer: Detokenizer
    stop: StopFilter
    tenant: str = ""
    session: str | None = None
    public: int = 0
    keep: float | None = None
    priority: int = 0
    top_logprobs: int | None = None

    tokens: list[int] = field(init=False)
    nodes: list[int] = field(default_factory=list)
    named: int = 0
    lease: TieredLease | None = None
    loading: bool = False
    fetched: bool = False
    waited: bool = False
    computed: int = 0
    pending: int = 0
    cached: int | None = None
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        assert len(self.prompt) > 0 and self.max_tokens > 0
        self.tokens = [int(token) for token in self.prompt]

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) + self.pending - self.computed

    @property
    def chosen(self) -> int:
        """Tokens of the answer, those included that are not known here yet."""
        return len(self.tokens) + self.pending - len(self.prompt)

    @property
    def generated(self) -> list[int]:
        """Tokens chosen so far, the end token included."""
        return self.tokens[len(self.prompt) :]

    def accept(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Add a chosen token; emits the text that it completes and decides whether the answer ends."""
        self.tokens.append(token)
        text = ""
        if token in self.ends:
            self.finish = "stop"
        else:
            text = self.stop.push(self.detokenizer.push(token))
            if self.stop.stopped is not None:
                self.finish = "stop"
            elif len(self.tokens) - len(self.prompt) >= self.max_tokens:
                self.finish = "length"
        if self.finish is not None and self.stop.stopped is None:
            text += self.stop.push(self.detokenizer.finish())
            if self.stop.stopped is None:
                text += self.stop.finish()
            else:
                self.finish = "stop"
        logprobs = (logprob,) if logprob is not None else ()
        if text or logprobs or self.finish is not None:
            usage = self.usage() if self.finish is not None else None
            self.emit(Delta(text, self.finish, usage, logprobs))

    def end(self, reason: FinishReason) -> None:
        """End without another token: cancelled, or the engine failed."""
        self.finish = reason
        self.emit(Delta("", reason, self.usage()))

    def usage(self) -> Usage:
        """Counts so far."""
        return Usage(len(self.prompt), self.cached or 0, len(self.tokens) - len(self.prompt))

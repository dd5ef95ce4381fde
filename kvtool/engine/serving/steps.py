"""A forward and the choice of its tokens as one launch, and the tokens' way back to the host.

On a GPU the host does not wait: while a step runs, the next one is prepared and queued behind it. Its
decodes take their tokens from the step before on the device (`Chunk.follows`), so nothing of it depends on
the host. What does depend on it is a choice made here (see `Ask.on_device`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kvtool.engine.compute.device import download, on, upload
from kvtool.engine.compute.edits import Answer, edited
from kvtool.engine.compute.logprobs import Logprobs, TokenLogprob, logprobs_of
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.compute.sampler import GREEDY
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.generation import Choose

Chosen = tuple[int, TokenLogprob | None]
"""A token, and how likely it was where that was asked for."""


@dataclass(frozen=True, slots=True)
class Ask:
    """How one row of logits becomes a token: `index` counts the answer's tokens before it.

    generated: those of them that are known here, for a choice that looks at them. follows: one more, which
    is this one of those that the step before has chosen. top_logprobs: likeliest tokens to report, None for
    no report.
    """

    choose: Choose
    index: int
    generated: Sequence[int] = ()
    follows: int | None = None
    top_logprobs: int | None = None

    @property
    def on_device(self) -> bool:
        """Whether the device can choose."""
        return isinstance(self.choose, Rules)

    def __call__(self, logits: Any) -> Chosen:
        """The row's token, chosen on the host from logits [vocab]."""
        assert self.follows is None
        if isinstance(self.choose, Rules):
            token = self.choose.token(logits, self.generated, self.index)
        else:
            token = self.choose(logits, self.generated)
        if self.top_logprobs is None:
            return token, None
        found = logprobs_of(logits[None], torch.tensor([token], device=logits.device), [self.top_logprobs])
        return token, found.of(0, token, self.top_logprobs)


class Step(Protocol):
    """A step that was launched."""

    def chosen(self) -> list[Chosen]:
        """What was chosen, for each row asked for; waits for the step."""
        ...


class Steps(Protocol):
    """Where the model runs. `ahead`: a step can be launched while the one before runs."""

    ahead: bool

    def launch(self, chunks: Sequence[Chunk], asked: Sequence[Ask]) -> Step:
        """Run `chunks` after all that was launched before; `asked` are the rows whose logits are wanted."""
        ...


class AtOnce:
    """Steps that are done when they are launched: the CPU's."""

    ahead = False

    def __init__(self, forward: Callable[[Sequence[Chunk]], Any]) -> None:
        """forward: one packed forward, logits [chunks that want them, vocab]."""
        self._forward = forward

    def launch(self, chunks: Sequence[Chunk], asked: Sequence[Ask]) -> "Done":
        """Tokens are chosen one by one."""
        logits = self._forward(chunks)
        return Done([ask(logits[row]) for row, ask in enumerate(asked)])


@dataclass(frozen=True, slots=True)
class Done:
    """A step that is over."""

    found: list[Chosen]

    def chosen(self) -> list[Chosen]:
        """There is nothing to wait for."""
        return self.found


class Queued:
    """Steps queued on a GPU: tokens are chosen there, and copied to the host behind the next step's back."""

    ahead = True

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._last: Tensor | None = None

    def launch(self, chunks: Sequence[Chunk], asked: Sequence[Ask]) -> "Flying":
        """Returns as soon as everything is queued."""
        with on(self._runner.arena.device):
            return self._launch(chunks, asked)

    def _launch(self, chunks: Sequence[Chunk], asked: Sequence[Ask]) -> "Flying":
        from kvtool.engine.compute.kernels.choose import choose

        previous, self._last = self._last, None
        logits = self._runner.step(chunks, previous)
        tokens = torch.empty(0, dtype=torch.int64)
        likely: dict[int, int] = {}
        logprobs: Logprobs | None = None
        if asked:
            rules = [ask.choose if isinstance(ask.choose, Rules) else Rules(GREEDY) for ask in asked]
            answers = [
                Answer(rule.edits, ask.generated, ask.follows) for rule, ask in zip(rules, asked, strict=True)
            ]
            rows = [(rule.sampling, ask.index) for rule, ask in zip(rules, asked, strict=True)]
            self._last = choose(edited(logits, answers, previous).contiguous(), rows)
            tokens = download(self._last)
            wanting = [row for row, ask in enumerate(asked) if ask.on_device and ask.top_logprobs is not None]
            if wanting:
                some = upload(torch.tensor(wanting), logits.device)
                tops = [asked[row].top_logprobs or 0 for row in wanting]
                logprobs = logprobs_of(logits[some], self._last[some], tops)
                likely = {row: place for place, row in enumerate(wanting)}
        done = torch.cuda.Event() if logits.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if done is not None:
            done.record()
        return Flying(logits, asked, tokens, logprobs, likely, done)


@dataclass(frozen=True, slots=True)
class Flying:
    """A step that may still be running: what is on the host is there when it is `done`.

    logits: valid until the next launch. tokens: int64 [rows]. likely: rows of `logprobs` by rows asked for.
    """

    logits: Tensor
    asked: Sequence[Ask]
    tokens: Tensor
    logprobs: Logprobs | None
    likely: dict[int, int]
    done: torch.cuda.Event | None

    def chosen(self) -> list[Chosen]:
        """Waits for the step, the only time that the host does, and makes the choices that are its own."""
        if self.done is not None:
            self.done.synchronize()
        found: list[Chosen] = []
        for row, (token, ask) in enumerate(zip(self.tokens.tolist(), self.asked, strict=True)):
            if not ask.on_device:
                found.append(ask(self.logits[row]))
            elif self.logprobs is not None and ask.top_logprobs is not None:
                found.append((token, self.logprobs.of(self.likely[row], token, ask.top_logprobs)))
            else:
                found.append((token, None))
        return found

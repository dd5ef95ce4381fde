"""A forward and the choice of its tokens as one launch, and the tokens' way back to the host.

On a GPU the host does not wait: while a step runs, the next one is prepared and queued behind it. Its
decodes take their tokens from the step before on the device (`Chunk.follows`), so nothing of it depends on
the host. What does depend on it is a choice made here (see `Ask.ahead`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kvtool.engine.compute.device import on
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.compute.sampler import GREEDY, sample
from kvtool.engine.serving.choosing import Plain
from kvtool.engine.serving.generation import Choose


@dataclass(frozen=True, slots=True)
class Ask:
    """How one row of logits becomes a token: `index` counts the answer's tokens before it.

    generated: those tokens, for a choice that looks at them; a plain one does not.
    """

    choose: Choose
    index: int
    generated: Sequence[int] = ()

    def __call__(self, logits: Any) -> int:
        """The row's token, chosen on the host."""
        if isinstance(self.choose, Plain):
            return sample(logits, self.choose.sampling, self.index)
        return self.choose(logits, self.generated)


class Step(Protocol):
    """A step that was launched."""

    @property
    def logits(self) -> Any:
        """Logits [rows asked for, vocab], valid until the next launch."""
        ...

    def tokens(self) -> list[int]:
        """The chosen tokens; waits for the step."""
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
        return Done(logits, [ask(logits[row]) for row, ask in enumerate(asked)])


@dataclass(frozen=True, slots=True)
class Done:
    """A step that is over."""

    logits: Any
    chosen: list[int]

    def tokens(self) -> list[int]:
        """There is nothing to wait for."""
        return self.chosen


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

        logits = self._runner.step(chunks, self._last)
        on_gpu = logits.device.type == "cuda"
        self._last = None
        tokens = torch.empty(len(asked), dtype=torch.int64, pin_memory=on_gpu)
        if asked:
            plain = [ask.choose.sampling if isinstance(ask.choose, Plain) else GREEDY for ask in asked]
            indexes = [ask.index for ask in asked]
            self._last = choose(logits.contiguous(), list(zip(plain, indexes, strict=True)))
            tokens.copy_(self._last, non_blocking=True)
        done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if done is not None:
            done.record()
        return Flying(logits, asked, tokens, done)


@dataclass(frozen=True, slots=True)
class Flying:
    """A step that may still be running. `chosen` int64 [rows] in page-locked memory is filled when `done`."""

    logits: Tensor
    asked: Sequence[Ask]
    chosen: Tensor
    done: torch.cuda.Event | None

    def tokens(self) -> list[int]:
        """Waits for the step, the only time that the host does, and makes the choices that are its own."""
        if self.done is not None:
            self.done.synchronize()
        tokens: list[int] = self.chosen.tolist()
        for row, ask in enumerate(self.asked):
            if not isinstance(ask.choose, Plain):
                tokens[row] = ask(self.logits[row])
        return tokens

"""From a request's sampling fields to the rules that pick its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvtool.engine.compute.edits import Answer, Edits, edited
from kvtool.engine.compute.sampler import Sampling, sample


@dataclass(frozen=True, slots=True)
class Rules:
    """A choice that the device can make by itself: rows of this kind are chosen together, where they are."""

    sampling: Sampling
    edits: Edits = field(default_factory=Edits)

    def __call__(self, logits: Tensor, generated: Sequence[int]) -> int:
        """One row's token, from logits [vocab], chosen on the host."""
        return self.token(logits, generated, len(generated))

    def token(self, logits: Tensor, generated: Sequence[int], index: int) -> int:
        """The same where only penalties need `generated`; `index` is how many tokens there are before it."""
        row = edited(logits.float().cpu()[None], [Answer(self.edits, generated)])[0]
        return sample(row, self.sampling, index)

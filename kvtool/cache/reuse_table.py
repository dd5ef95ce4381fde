"""A block's traits, the classes they put it in, and their worth at an age: what `fitted` looks up.

Traits are what is known of a block when a request that used it ends, each as a small code, packed into
one int64. Each of a few decision trees over the codes names a class; a table gives, by class and time
since the use, the expected hits per block and second, and the trees' mean counts. Trees and table travel
in the policy's parameters, so that the compiled core reads them without knowing where they were fitted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.cache.core import compiled

TRAITS = ("turn", "gap", "prompt", "output", "new", "uses", "end", "depth", "hit", "pause")
"""Order of the codes in the packed word.

turn: requests so far in this chain of growing prompts, from 0, 7 or more as 7. gap: log2 of the seconds
since the chain's last request, 0 if it begins. prompt, new: log2 of tokens / 128; new is what was never
seen before. output: half octaves of tokens from 16, 0 unknown. uses: of this block. end: blocks that
follow it in the prompt, 2 or more as 2; 3 while its request runs. depth: log2 of its position. hit:
whether the block was known. pause: log2 of the seconds since its last use, 0 if there was none.
"""

WIDTH = (3, 4, 4, 4, 4, 4, 2, 4, 1, 4)
SHIFT = tuple(int(sum(WIDTH[:i])) for i in range(len(WIDTH)))
TURN, GAP, PROMPT, OUTPUT, NEW, USES, END, DEPTH, HIT, PAUSE = range(len(TRAITS))
CLASS_SHIFT, CLASS_WIDTH, MOST_TREES = 40, 5, 4
"""Where the classes lie in the word: each tree's own number, the first tree's lowest."""

RUNNING = 3
"""Code of END while the request that used the block last runs."""

BLOCK_SIZE, END_SHIFT, REBUILD, NODES_IN_TREES, EDGES, TREES, HEADER = 0, 1, 2, 3, 4, 5, 6
"""Header of the parameters: tokens a block; what to add to END (1 where the log had partial last blocks
and this pool has not); growth of a block's rebuild cost with its depth; sizes of the two tables; number of
trees, whose (first row, first class) follow."""

_SHIFTS = np.array(SHIFT, np.int64)
_MASKS = np.array([(1 << width) - 1 for width in WIDTH], np.int64)


@dataclass(frozen=True)
class ReuseTable:
    """Trees over traits and the worth of their classes by age.

    tree: int64 [t, 4], rows (trait, threshold, left, right): codes up to the threshold go left; a leaf is
    (-1, class, 0, 0). edges: float64 [k] ages in seconds at which the worth steps. worth: float64
    [classes, k + 1]. partial_ends: the log's prompts end in a partial block. roots: each tree's first row;
    its rows and its classes, 32 at most, follow those of the tree before it.
    """

    tree: NDArray[np.int64]
    edges: NDArray[np.float64]
    worth: NDArray[np.float64]
    partial_ends: bool
    roots: tuple[int, ...] = (0,)

    @property
    def first_classes(self) -> list[int]:
        """The lowest class of each tree."""
        ends = [*self.roots[1:], len(self.tree)]
        rows = [self.tree[start:end] for start, end in zip(self.roots, ends, strict=True)]
        return [int(each[each[:, 0] < 0, 1].min()) for each in rows]

    def parameters(
        self, block_size: int, partial_ends: bool = False, rebuild: float = 0.0
    ) -> NDArray[np.float64]:
        """The policy's parameters for a pool of this block size.

        rebuild: FLOPs that a block one deeper costs more, over those of a first block.
        """
        shift = float(self.partial_ends and not partial_ends)
        sizes = [len(self.tree), len(self.edges), len(self.roots)]
        header = np.array([block_size, shift, rebuild, *sizes], float)
        trees = np.column_stack([self.roots, self.first_classes])
        worth = self.worth / len(self.roots)
        tables = (header, trees.ravel(), self.tree.ravel(), self.edges, worth.ravel())
        return np.concatenate(tables).astype(float)


@compiled(types.int64(types.int64, types.int64))
def code_of(traits: Any, trait: Any) -> Any:
    """One code of a packed word."""
    return (traits >> _SHIFTS[trait]) & _MASKS[trait]


@compiled(types.int64(types.int64, types.int64, types.int64))
def with_code(traits: Any, trait: Any, code: Any) -> Any:
    """The word with one code replaced, at most the code's width."""
    mask = _MASKS[trait]
    code = min(code, mask)
    return (traits & ~(mask << _SHIFTS[trait])) | (code << _SHIFTS[trait])


@compiled(types.int64(types.float64))
def doublings(x: Any) -> Any:
    """Bit length of x: 0 below 1, 1 below 2, 2 below 4, ... 63 from 2**62, infinity too."""
    n: Any = 0
    while x >= 1.0 and n < 63:
        x *= 0.5
        n += 1
    return n


@compiled(types.int64(types.float64))
def seconds_code(x: Any) -> Any:
    """1 below 5 s, then half octaves ... 15 from 640 s: finer where people answer."""
    return 1 + doublings(x * x / 25.0)


@compiled(types.int64(types.float64[::1], types.int64))
def classes_of(parameters: Any, traits: Any) -> Any:
    """The classes that the trees put `traits` in, packed as the word has them above CLASS_SHIFT."""
    trees = np.int64(parameters[TREES])
    classes = np.int64(0)
    for tree in range(trees):
        at = np.int64(parameters[HEADER + 2 * tree])
        while True:
            row = HEADER + 2 * trees + 4 * at
            trait = np.int64(parameters[row])
            if trait < 0:
                own = np.int64(parameters[row + 1] - parameters[HEADER + 2 * tree + 1])
                classes |= own << (CLASS_WIDTH * tree)
                break
            low = code_of(traits, trait) <= parameters[row + 1]
            at = np.int64(parameters[row + 2] if low else parameters[row + 3])
    return classes


@compiled(types.float64(types.float64[::1], types.int64, types.float64, types.int64))
def worth_of(parameters: Any, traits: Any, age: Any, depth: Any) -> Any:
    """Expected hits per second of keeping a block of these classified traits, times its rebuild cost."""
    edges, trees = np.int64(parameters[EDGES]), np.int64(parameters[TREES])
    start = HEADER + 2 * trees + 4 * np.int64(parameters[NODES_IN_TREES])
    step = 0
    while step < edges and age >= parameters[start + step]:
        step += 1
    worth = 0.0
    classes = traits >> CLASS_SHIFT
    for tree in range(trees):
        at = np.int64(parameters[HEADER + 2 * tree + 1]) + (classes & ((1 << CLASS_WIDTH) - 1))
        worth += parameters[start + edges + at * (edges + 1) + step]
        classes >>= CLASS_WIDTH
    return worth * (1.0 + depth * parameters[REBUILD])

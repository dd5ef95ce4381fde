"""Parts of a log -> the whole, so that parts can be read anywhere.

Blocks meet by content: counts add up, the first and last use of a block are the earliest and latest of
its parts, and every figure is what one pass over the whole log gives.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvtool.analysis.build import arrival_order, runs_in_order
from kvtool.analysis.runs import Runs
from kvtool.analysis.trie import BlockTrie
from kvtool.analysis.workload import Space

Name = TypeVar("Name", bound=Hashable)


def merge(parts: Sequence[Runs]) -> Runs:
    """The runs of all `parts` in the log's order, each as WorkloadBuilder's `finish` gives it: sessions
    are inferred and blocks coarsened afterwards.

    Parts have one block size and one encoder. Equal to one pass, block numbers included; only a request
    without a time whose part begins with it stands behind its predecessor's part, not behind the predecessor.
    """
    assert len({(part.block_size, part.ready_made, part.encoder_fingerprint) for part in parts}) == 1
    assert all(part.base is None for part in parts)
    trie = BlockTrie(parts[0].stored.shape[1])
    spaces: dict[Space, int] = {}
    names: dict[str, int] = {}
    leaves, space, session = [], [], []
    for part in parts:
        of_space = _renumbered(part.spaces, spaces)
        link = np.where(part.parent < 0, -1 - of_space[part.node_space], part.parent)
        ends = trie.graft(link, part.depth + 1 - part.above, np.ravel(part.stored))
        leaves.append(np.append(ends, np.int32(-1))[part.leaf])
        space.append(of_space[part.space])
        session.append(np.append(_renumbered(part.session_names, names), np.int32(-1))[part.session])
    arrival = np.concatenate([part.arrival for part in parts])
    order = arrival_order(arrival)
    meta = pa.concat_tables([part.meta for part in parts]).unify_dictionaries().combine_chunks()
    return runs_in_order(
        trie,
        np.concatenate(leaves)[order],
        block_size=parts[0].block_size,
        ready_made=parts[0].ready_made,
        encoder_fingerprint=parts[0].encoder_fingerprint,
        arrival=arrival[order],
        session=np.concatenate(session)[order],
        session_names=list(names),
        space=np.concatenate(space)[order],
        spaces=list(spaces),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts])[order],
        output_tokens=np.concatenate([part.output_tokens for part in parts])[order],
        partial=np.concatenate([part.partial for part in parts])[order],
        meta=meta.take(order),
    )


def _renumbered(own: Sequence[Name], common: dict[Name, int]) -> NDArray[np.int32]:
    """Number in `common` of each of `own`, which are entered where they are new, int32 [len(own)]."""
    return np.array([common.setdefault(name, len(common)) for name in own], np.int32)

"""Workloads of parts of a log -> the workload of the whole, so that parts can be read anywhere.

Blocks meet by content: counts add up, the first and last use of a block are the earliest and latest of
its parts, and every figure is what one pass over the whole log gives.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvtool.analysis.build import arrival_order, spread_spaces
from kvtool.analysis.trie import BlockTrie
from kvtool.analysis.workload import Space, Workload

Name = TypeVar("Name", bound=Hashable)


def merge(parts: Sequence[Workload]) -> Workload:
    """The workload of all `parts` in the log's order, each as WorkloadBuilder's `finish` gives it: sessions
    are inferred and blocks coarsened afterwards.

    Parts have one block size and one encoder. Equal to one pass, node ids included; only a request without
    a time whose part begins with it stands behind its predecessor's part, not behind the predecessor.
    """
    assert len({(part.block_size, part.ready_made, part.encoder_fingerprint) for part in parts}) == 1
    trie = BlockTrie(parts[0].words.shape[1])
    spaces: dict[Space, int] = {}
    names: dict[str, int] = {}
    leaves, space, session = [], [], []
    for part in parts:
        of_space = _renumbered(part.spaces, spaces)
        ids = trie.graft(np.where(part.parent < 0, -1 - of_space[part.node_space], part.parent), part.words)
        leaves.append(np.append(ids, np.int32(-1))[part.leaf])
        space.append(of_space[part.space])
        session.append(np.append(_renumbered(part.session_names, names), np.int32(-1))[part.session])
    arrival = np.concatenate([part.arrival for part in parts])
    order = arrival_order(arrival)
    meta = pa.concat_tables([part.meta for part in parts]).unify_dictionaries().combine_chunks()
    return replace(
        parts[0],
        arrival=arrival[order],
        session=np.concatenate(session)[order],
        session_names=list(names),
        space=np.concatenate(space)[order],
        spaces=list(spaces),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts])[order],
        output_tokens=np.concatenate([part.output_tokens for part in parts])[order],
        leaf=np.concatenate(leaves)[order],
        partial=np.concatenate([part.partial for part in parts])[order],
        parent=np.maximum(trie.link, -1),
        depth=trie.depth,
        node_space=spread_spaces(trie.link),
        words=trie.words,
        meta=meta.take(order),
    )


def _renumbered(own: Sequence[Name], common: dict[Name, int]) -> NDArray[np.int32]:
    """Number in `common` of each of `own`, which are entered where they are new, int32 [len(own)]."""
    return np.array([common.setdefault(name, len(common)) for name in own], np.int32)

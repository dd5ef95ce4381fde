"""The cache's four hooks for an engine of your own: split, query, lease, commit. No tensors, no torch.

>>> import numpy as np
>>> cache = PrefixCache(blocks=64, block_size=4, model="my-model@v3")
>>> prompt = cache.split(np.arange(10, dtype=np.uint32))      # 1. at the entrance: blocks and their hashes
>>> cache.query(prompt)                                       # 2. tokens that need not be computed
0
>>> table = cache.lease(prompt, now=0.0)                      # 3. the page table: a slot per block
>>> table.cached, len(table.slots)
(0, 3)
>>> for start in range(table.cached, 10, 4):                  # your forward writes keys and values into
...     computed = min(start + 4, 10)                         # slots[start // 4], and tells what is done
...     cache.commit(table, computed)                         # 4. full blocks are hits for others at once
>>> cache.release(table)
>>> longer = cache.split(np.arange(14, dtype=np.uint32))
>>> cache.query(longer)
8
>>> table = cache.lease(longer, now=1.0, session="agent-7")
>>> table.cached, table.slots[:2] == [0, 1]
(8, True)
>>> cache.commit(table, 14); cache.release(table)

With `host_blocks` blocks that leave are kept below: before you write to a leased slot, execute
`cache.moves()` in order, read `table.loads` into their slots, and say with `cache.loaded` how many came.
"""

from dataclasses import dataclass

from kvtool.blocks import TokenIds, namespace, reusable_blocks
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Move, TieredLease, TieredPool


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt cut into blocks. nodes: identities of its full blocks."""

    tokens: TokenIds
    nodes: list[int]


@dataclass(slots=True)
class PageTable:
    """slots[i] backs tokens [i * block_size, (i + 1) * block_size). The first `cached` tokens are there."""

    lease: TieredLease
    cached: int

    @property
    def slots(self) -> list[int]:
        """A slot of your KV memory for every block of the prompt, the partial last one included."""
        return self.lease.slots

    @property
    def loads(self) -> list[Move]:
        """Blocks to read from a lower tier into their slots; empty without one."""
        return self.lease.loads


class PrefixCache:
    """Bookkeeping of `blocks` slots of KV memory. Not thread-safe; time is passed in, in seconds.

    model: whatever the values depend on (weights, tokenizer, dtype); tenants never share.
    """

    def __init__(
        self, blocks: int, block_size: int, model: str, policy: str = "lru", host_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self._model = model
        self._pool = TieredPool(POLICIES.load(policy), blocks, host_blocks)
        self._index = BlockIndex(self._pool, block_size, 4 * (blocks + host_blocks) + 4096)
        self._open: list[PageTable] = []

    def split(self, tokens: TokenIds, tenant: str = "") -> Prompt:
        """Cut and hash a prompt, uint32 [n]. Use the result before the next 4 * blocks prompts."""
        self._index.trim(node for table in self._open for node in table.lease.nodes)
        return Prompt(tokens, self._index.chain(tokens, namespace(self._model, self.block_size, tenant)))

    def query(self, prompt: Prompt) -> int:
        """Leading tokens that are in some tier; never all of them: the last one gives the logits."""
        most = reusable_blocks(len(prompt.tokens), self.block_size)
        return len(self._pool.locate(prompt.nodes[:most])) * self.block_size

    def lease(self, prompt: Prompt, now: float, session: str | None = None) -> PageTable | None:
        """Slots for the whole prompt, what is there already held in place; None when there is no room."""
        tokens, size = len(prompt.tokens), self.block_size
        lease = self._pool.acquire(
            prompt.nodes, -(-tokens // size), now, session, reusable_blocks(tokens, size)
        )
        if lease is None:
            return None
        table = PageTable(lease, lease.hit * size)
        self._open.append(table)
        if not lease.loads:
            self._pool.settle(lease, 0)
        return table

    def moves(self) -> list[Move]:
        """Copies to lower tiers that are due, in order."""
        return self._pool.take_moves()

    def loaded(self, table: PageTable, blocks: int) -> None:
        """The first `blocks` of `table.loads` are in their slots; the next one was bad, if any is left."""
        self._pool.settle(table.lease, blocks)
        table.cached += blocks * self.block_size

    def commit(self, table: PageTable, computed: int) -> None:
        """The first `computed` tokens have their keys and values: their full blocks are hits from now on."""
        self._pool.commit(table.lease, min(computed // self.block_size, len(table.lease.nodes)))

    def release(self, table: PageTable) -> None:
        """The request has ended; its blocks stay until others need their room."""
        self._open = [other for other in self._open if other is not table]
        self._pool.release(table.lease)

    def check(self) -> None:
        """Assert every invariant; slow."""
        self._pool.check()

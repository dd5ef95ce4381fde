"""What a model's queries look at: their second moments over a fixed text, measured once per model and kept.

They steer the rounding of keys (storage/rounding.py). The text is long enough that what turns with the
position (RoPE) is seen all the way round, and what turns slowly is seen where it stands.
"""

from contextlib import suppress

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from kvtool.blocks import fingerprint
from kvtool.embedded import cache_directory
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.schedule import CHUNK_TOKENS
from kvtool.engine.storage.rounding import Guide
from kvtool.engine.watching import watching
from kvtool.errors import KvtoolError
from kvtool.files import write_whole

TOKENS = 2048
"""Length of the text, which is repeated to fill it."""

BLOCK_SIZE = 32

TEXT = """You are a support agent of a small railway. Passengers ask about trains, tickets and refunds.
Answer briefly and only from what the tools return. A ticket may be refunded until one hour before
departure; after that only if the train was more than 30 minutes late. Ask for the booking number first.

Tools:
{"name": "find_train", "description": "Trains between two stations on a day.", "parameters": {"from":
"string", "to": "string", "date": "YYYY-MM-DD"}}
{"name": "get_booking", "description": "A booking and its tickets.", "parameters": {"booking_id": "string"}}
{"name": "refund_ticket", "description": "Pay the price of one ticket back.", "parameters": {"ticket_id":
"string", "reason": "late | cancelled | other"}}

Passenger: Hello, my train to the coast never came yesterday and I had to take a taxi. Booking QX7-113.
Agent: {"name": "get_booking", "arguments": {"booking_id": "QX7-113"}}
Result: {"booking_id": "QX7-113", "tickets": [{"ticket_id": "T-1", "train": "R 42", "date": "2024-05-14",
"from": "Old Harbour", "to": "Seaview", "price": 18.40, "status": "used"}]}
Agent: I see one ticket for train R 42 from Old Harbour to Seaview, 18.40. Was the train cancelled, or late?
Passenger: It was cancelled, they told us at nine in the evening.
Agent: {"name": "refund_ticket", "arguments": {"ticket_id": "T-1", "reason": "cancelled"}}
Result: {"refunded": 18.40, "days": 5}
Agent: Done: 18.40 will be back on your card within five days. I am sorry for the trouble. Is there more?
"""


def query_guide(model: Model) -> Guide:
    """The guide of a model: read from the cache, or one forward of TOKENS tokens."""
    key = fingerprint(model.fingerprint["digest"].encode(), TEXT.encode(), str(TOKENS).encode())
    path = cache_directory() / "query-moments" / f"{key}.safetensors"
    shapes = [(layer.kv_heads, layer.key_dim, layer.key_dim) for layer in model.config.layers]
    try:
        kept = load(path.read_bytes())
        found = [kept[str(layer)] for layer in range(len(shapes))]
        if [tuple(moments.shape) for moments in found] == shapes:
            return Guide(found)
    except (OSError, KeyError, SafetensorError):
        pass
    found = query_moments(model)
    with suppress(OSError, KvtoolError):  # a cache that cannot be written costs time alone
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save({str(layer): moments for layer, moments in enumerate(found)}))
    return Guide(found)


def query_moments(model: Model) -> list[Tensor]:
    """For each layer the means of q q' over the text's queries, [kv_heads, key_dim, key_dim], float32."""
    tokens = np.array([*TEXT.encode()]) % model.config.vocab  # where there is no tokenizer
    if model.prompt_encoder is not None:
        tokens = model.encoder.tokenizer.encode(TEXT)
    tokens = np.resize(tokens, min(TOKENS, model.config.max_positions)).astype(np.uint32)
    layers = model.config.layers
    sums = [torch.zeros(layer.kv_heads, layer.key_dim, layer.key_dim) for layer in layers]
    seen = 0

    def see(_: nn.Module, query: Tensor, *rest: object) -> None:
        nonlocal seen
        own = sums[seen % len(layers)]
        queries = query.float().reshape(own.shape[0], -1, own.shape[1])
        own += (queries.transpose(1, 2) @ queries).cpu() / queries.shape[1] * query.shape[1]
        seen += 1

    slots = range(-(-len(tokens) // BLOCK_SIZE))
    runner = Runner(model, Arena(model, len(slots), BLOCK_SIZE))
    with watching(model, see):
        for start in range(0, len(tokens), CHUNK_TOKENS):
            runner.step([Chunk(tokens[start : start + CHUNK_TOKENS], start, slots)])
    return [moments / len(tokens) for moments in sums]

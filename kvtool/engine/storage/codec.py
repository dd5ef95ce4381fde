"""What a codec is, and how a whole block goes through one: tensors in, one run of bytes out.

Layers of one shape and one codec travel together (a stack), so a codec sees keys [layers, tokens, heads,
dim]. A block's parts are laid one after the other, wider elements first, which keeps every part aligned
within the block without padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.faults import faults, refuse
from kvtool.engine.storage.layout import DTYPES, ITEM_BYTES, BlockShape, LayerGroup, Part
from kvtool.engine.storage.planes import compress, decompress
from kvtool.engine.storage.rounding import Guide
from kvtool.errors import KvtoolError

Block = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of one block, layer by layer, each [block_size, kv_heads, dim] in the arena's dtype."""

TORCH_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
}


class Codec(Protocol):
    """How keys and values are stored. Entries of the registry are frozen dataclasses: fields are config.

    `first` says that the block begins a prompt. Its token 0 is the attention sink: every codec keeps it
    in the arena's dtype and out of its statistics, the cheapest accuracy there is.

    compressed: a block's bytes are compressed as a whole at the end, so that their number is known only
    then. steered: its rounding follows a guide where there is one (storage/rounding.py).
    """

    compressed: ClassVar[bool]
    steered: ClassVar[bool]

    def __hash__(self) -> int:
        """By config."""
        ...

    @property
    def name(self) -> str:
        """The registry's name."""
        ...

    def config(self) -> dict[str, Any]:
        """JSON from which `load_codec` makes the same codec: {"codec": name, ...}."""
        ...

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """The arrays that `encode` returns for `tokens` tokens of an arena of `dtype` (safetensors name)."""
        ...

    def encode(
        self, keys: Tensor, values: Tensor, first: bool, feedback: Tensor | None = None
    ) -> dict[str, Tensor]:
        """keys, values: [layers, tokens, kv_heads, dim]. Deterministic to the bit where they are finite.

        feedback: a guide's for a block's layers, which repeat block by block, if the codec is steered.
        """
        ...

    def held(self, keys: Tensor, values: Tensor, parts: Mapping[str, Tensor]) -> Tensor | None:
        """Whether `parts`, which `encode` made, hold what it was given: bool [layers]; None: they do."""
        ...

    def decode(
        self,
        parts: Mapping[str, Tensor],
        group: LayerGroup,
        first: bool,
        dtype: torch.dtype,
        rotated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values in `dtype`, shaped as they went in. `rotated`: left as the codec rotated them (see
        storage/rotation.py), for attention that rotates queries and outputs instead.
        """
        ...


@dataclass(frozen=True)
class Mixed:
    """One codec per layer, by registry name. Not in the registry: which layers need what is measured."""

    layers: tuple[str, ...]
    compressed: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Not a registry name."""
        return "mixed"

    def config(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {"codec": "mixed", "layers": list(self.layers)}


BlockCodec = Codec | Mixed
"""How a block is stored."""


def load_codec(config: Mapping[str, Any]) -> BlockCodec:
    """The codec that a JSON config describes. Unknown names and fields are errors that say so."""
    fields = dict(config)
    name = str(fields.pop("codec", None))
    try:
        if name == "mixed":
            mixed = Mixed(tuple(fields.pop("layers")), **fields)
            for layer in set(mixed.layers):
                CODECS.load(layer)
            return mixed
        codec: BlockCodec = CODECS.load(name)(**fields)
        return codec
    except (TypeError, KeyError) as error:
        raise KvtoolError(f"codec {name}: {error}", "it was written by another kvtool") from error


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers of a block that are encoded together. `suffix` tells their parts from other stacks'."""

    codec: Codec
    group: LayerGroup
    layers: tuple[int, ...]
    suffix: str


@lru_cache(maxsize=64)
def stacks(codec: BlockCodec, shape: BlockShape) -> tuple[Stack, ...]:
    """A block's layers by shape and codec, in order of the first one; `.0`, `.1` where there are several."""
    found: dict[tuple[int, str], list[int]] = {}
    ends = list(accumulate(group.layers for group in shape.groups))
    if isinstance(codec, Mixed) and len(codec.layers) != ends[-1]:
        raise KvtoolError(f"a mixed codec for {len(codec.layers)} layers, the model has {ends[-1]}")
    for number, end in enumerate(ends):
        for layer in range(end - shape.groups[number].layers, end):
            name = codec.layers[layer] if isinstance(codec, Mixed) else codec.name
            found.setdefault((number, name), []).append(layer)
    made = []
    for place, ((number, name), layers) in enumerate(found.items()):
        group = shape.groups[number]
        own = load_codec({"codec": name}) if isinstance(codec, Mixed) else codec
        assert not isinstance(own, Mixed)
        same = LayerGroup(len(layers), group.kv_heads, group.key_dim, group.value_dim)
        made.append(Stack(own, same, tuple(layers), f".{place}" if len(found) > 1 else ""))
    return tuple(made)


def is_exact(codec: BlockCodec, shape: BlockShape) -> bool:
    """Whether decoded blocks are the arena's to the last bit, so that others may be computed over them."""
    return codec.name in ("raw", "lossless") or (codec.name == "half" and shape.dtype != "float32")


def is_steered(codec: BlockCodec, shape: BlockShape) -> bool:
    """Whether a guide changes what is stored."""
    return any(stack.codec.steered for stack in stacks(codec, shape))


def block_parts(codec: BlockCodec, shape: BlockShape, first: bool) -> list[Part]:
    """All arrays of one encoded block in stored order, before compression."""
    parts = []
    for stack in stacks(codec, shape):
        for part in stack.codec.parts(stack.group, shape.block_size, DTYPES[shape.dtype], first):
            parts.append(Part(part.name + stack.suffix, part.dtype, part.shape))
    return sorted(parts, key=lambda part: -ITEM_BYTES[part.dtype])


def stored_parts(codec: BlockCodec, shape: BlockShape, first: bool, nbytes: int) -> list[Part]:
    """The arrays under which a block of `nbytes` stored bytes stands in its file."""
    if codec.compressed:
        return [Part("compressed", "U8", (nbytes,))]
    return block_parts(codec, shape, first)


def block_bytes(codec: BlockCodec, shape: BlockShape, first: bool) -> int:
    """Stored size of one block; before compression, if it is compressed."""
    return sum(part.nbytes for part in block_parts(codec, shape, first))


def bits_per_element(codec: BlockCodec, shape: BlockShape, first: bool = False) -> float:
    """Stored bits per key or value element, grids and sink included."""
    return 8 * block_bytes(codec, shape, first) / shape.elements


def encode_block(
    codec: BlockCodec, shape: BlockShape, block: Block, first: bool, guide: Guide | None = None
) -> bytes:
    """One block as it stands in a shard. Infinities and NaNs are refused: they would poison a cache."""
    one = [(keys[None], values[None]) for keys, values in block]
    made, fault = encode_blocks(codec, shape, one, first, guide)
    refuse(int(fault), codec.name, shape.dtype)
    data: bytes = made[0].cpu().numpy().tobytes()
    return compressed(codec, shape, data)


def compressed(codec: BlockCodec, shape: BlockShape, data: bytes) -> bytes:
    """A row of `encode_blocks` as it is stored."""
    return compress(data, ITEM_BYTES[DTYPES[shape.dtype]]) if codec.compressed else data


def encode_blocks(
    codec: BlockCodec, shape: BlockShape, blocks: Block, first: bool, guide: Guide | None = None
) -> tuple[Tensor, Tensor]:
    """n blocks, by layer keys and values [n, block_size, kv_heads, dim] -> bytes, faults, on their device.

    Bytes are uint8 [n, bytes], faults uint8 [n]; a block with one must not be used (`faults.refuse`).
    `first`: of all of them. What is to be compressed is not yet. guide: steers the rounding of few bits; any
    guide, or none, makes blocks that read the same way.
    """
    tensors: dict[str, Tensor] = {}
    found: list[Tensor] = []
    for stack in stacks(codec, shape):
        keys, values = (
            torch.stack([blocks[layer][side] for layer in stack.layers], 1).flatten(0, 1) for side in (0, 1)
        )
        feedback = guide.feedback(stack.layers) if guide is not None and stack.codec.steered else None
        made = stack.codec.encode(keys, values, first, feedback)
        tensors.update({name + stack.suffix: tensor for name, tensor in made.items()})
        layers = faults(keys, values, stack.codec.held(keys, values, made))
        found.append(layers.view(-1, len(stack.layers)).amax(1))
    parts = block_parts(codec, shape, first)
    assert len(tensors) == len(parts)
    return torch.cat([_to_bytes(tensors[part.name], part) for part in parts], 1), torch.stack(found).amax(0)


def decode_block(
    codec: BlockCodec,
    shape: BlockShape,
    data: bytearray | memoryview,
    first: bool,
    dtype: torch.dtype | None = None,
) -> Block:
    """Inverse of `encode_block`, on the CPU, in `dtype` or the arena's own.

    `data` must have the block's size; the tensors may be views of it.
    """
    if codec.compressed:
        data = decompress(data, ITEM_BYTES[DTYPES[shape.dtype]], block_bytes(codec, shape, first))
    blocks = decode_blocks(codec, shape, torch.frombuffer(data, dtype=torch.uint8)[None], first, dtype)
    return [(keys[0], values[0]) for keys, values in blocks]


def decode_blocks(
    codec: BlockCodec, shape: BlockShape, data: Tensor, first: bool, dtype: torch.dtype | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Inverse of `encode_blocks`: by layer, on the device of `data`, in `dtype` or the arena's own."""
    tensors = tensors_of(codec, shape, data, first)
    blocks: dict[int, tuple[Tensor, Tensor]] = {}
    for stack in stacks(codec, shape):
        names = [part.name for part in stack.codec.parts(stack.group, shape.block_size, "F16", first)]
        own = {name: tensors[name + stack.suffix].flatten(0, 1) for name in names}
        made = stack.codec.decode(own, stack.group, first, dtype or TORCH_TYPES[DTYPES[shape.dtype]])
        leading = len(data), stack.group.layers
        keys, values = (tensor.view(*leading, *tensor.shape[1:]).unbind(1) for tensor in made)
        blocks.update(zip(stack.layers, zip(keys, values, strict=True), strict=True))
    return [blocks[layer] for layer in range(len(blocks))]


def tensors_of(codec: BlockCodec, shape: BlockShape, data: Tensor, first: bool) -> dict[str, Tensor]:
    """The parts of n blocks, uint8 [n, bytes], as views where alignment allows: each [n, *part.shape]."""
    tensors = {}
    at = 0
    for part in block_parts(codec, shape, first):
        some = data[:, at : at + part.nbytes]
        wide = some if ITEM_BYTES[part.dtype] == 1 else some.flatten()
        tensors[part.name] = wide.view(TORCH_TYPES[part.dtype]).view(len(data), *part.shape)
        at += part.nbytes
    assert at == data.shape[1]
    return tensors


def _to_bytes(tensor: Tensor, part: Part) -> Tensor:
    """A part of n blocks, their layers one after the other, as uint8 [n, bytes]."""
    blocks = tensor.reshape(len(tensor) // part.shape[0], *part.shape)
    assert blocks.dtype == TORCH_TYPES[part.dtype] and tensor.shape[1:] == part.shape[1:], part
    return blocks.flatten(1).view(torch.uint8)

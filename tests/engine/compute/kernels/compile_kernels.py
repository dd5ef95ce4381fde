"""Compile the kernels for GPUs that need not be here: the interpreter forgives what the compiler refuses.

`python compile_kernels.py quick|all ARCH...` prints a line per kernel: name, variant, loads that are
begun ahead, bytes of shared memory. Runs without TRITON_INTERPRET, which is why it is a program and no test.
"""

import sys
from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvtool.engine.compute.kernels import attend, choose, lift, merge, squeeze, store

Variant = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]
"""Kernel, types of its arguments, constants, launch options."""

DOTS = {"*bf16": tl.bfloat16, "*fp16": tl.float16, "*fp32": tl.float32}
CODES = {16: None, 8: "*i8", 4: "*u8"}
# Those that end in "stride" or "head" are multiples of 16, as pointers are.
SIZES = ["scale", "softcap", "window", "raw_slots", "table_stride", "query_stride", "query_head"]
SIZES += ["turned_stride", "turned_head", "total_rows", "splits"]


def power(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def attention(kind: str, width: int, block: int, rows: int, splits: int, bits: tuple[int, int]) -> Variant:
    direct = splits == 1 and bits[1] != 4
    types = dict.fromkeys(("QUERY", "TURNED", "KEYS", "VALUES"), kind)
    types |= {"KEY_CODES": CODES[bits[0]] or kind, "VALUE_CODES": CODES[bits[1]] or kind}
    types |= {"KEY_STEPS": "*u8", "VALUE_STEPS": "*u8", "KEY_OFFSETS": "*i8", "VALUE_OFFSETS": "*i8"}
    types |= {"TILES": "*i32", "TABLES": "*i32", "OUT": kind if direct else "*fp32", "SUMS": "*fp32"}
    types |= {name: "fp32" if name in ("scale", "softcap") else "i32" for name in SIZES}
    constants = {"HEADS": 32, "KV_HEADS": 8, "GROUPS": 4, "D": width, "DV": width, "BLOCK": block}
    constants |= {"PD": power(width), "PV": power(width), "HD": power(width // 2), "HV": power(width // 2)}
    constants |= {"ROWS": rows, "STEP": min(block, 32) if bits[0] != 16 else attend.RAW_STEP}
    constants |= {"KEY_BITS": bits[0], "VALUE_BITS": bits[1], "DOT": DOTS[kind]}
    constants |= {"WINDOWED": width == 64, "CAPPED": width == 96}
    options = attend.launch_options(rows, width * (4 if kind == "*fp32" else 2), bits[0])
    return attend._attend, types, constants, options


def others() -> Iterator[Variant]:
    types = {"PARTS": "*fp32", "PART_SUMS": "*fp32", "TILES": "*i32", "OUT": "*bf16", "SUMS": "*fp32"}
    sizes = {"HEADS": 32, "COLUMNS": 128, "TOKENS": 1, "PC": 128, "PS": 8}
    yield merge._merge, {**types, "rows": "i32", "splits": "i32"}, sizes, {}
    types = dict.fromkeys(("KEY", "VALUE", "KEYS", "VALUES"), "*bf16") | {"WRITES": "*i64"}
    types |= dict.fromkeys(("key_stride", "key_head", "value_stride", "value_head"), "i32")
    yield store._store, types, {"KV_HEADS": 8, "D": 80, "DV": 80, "PD": 128, "PV": 128}, {}
    types = {"LOGITS": "*fp32", "WARMTH": "*fp32", "FLOORS": "*fp32", "SEEDS": "*i64"}
    types |= {"INDEXES": "*i32", "CHOSEN": "*i64", "vocab": "i32"}
    yield choose._choose, types, {"STEP": choose.STEP}, {}
    types = dict.fromkeys(("MEMORY", "KEYS", "VALUES"), "*bf16") | dict.fromkeys(
        ("SOURCES", "TARGETS"), "*i64"
    )
    types |= dict.fromkeys(("count", "stride", "key_start", "value_start"), "i32")
    sizes = {"KEY": 32768, "VALUE": 32768, "STEP": lift.STEP, "PROGRAMS": lift.PROGRAMS}
    yield lift._lift, types, sizes, {"num_warps": 8}


def moves(width: int, block: int, kind: str, bits: int) -> Iterator[Variant]:
    codes = {"CODES": CODES[bits], "STEPS": "*u8", "OFFSETS": "*i8", "RAW": kind, "ROTATION": "*fp32"}
    codes |= dict.fromkeys(("SOURCES", "TARGETS"), "*i64")
    codes |= dict.fromkeys(("raw_layer", "codes_layer", "steps_layer"), "i64")
    sizes = {"HEADS": 8, "D": width, "BLOCK": block, "GROUPS": -(-block // 32), "TOKENS": min(block, 32)}
    half = power(width // 2)
    sizes |= {"PD": power(width), "HD": half, "PIECE": min(half, 32) if bits == 4 else half, "BITS": bits}
    for along in (0, 1):
        for kernel in (squeeze._squeeze, squeeze._expand):
            yield kernel, codes, {**sizes, "ALONG": along}, {"num_stages": 1}


def variants(quick: bool) -> Iterator[Variant]:
    yield from others()
    if quick:
        yield from moves(128, 32, "*bf16", 4)
        yield attention("*bf16", 64, 16, 16, 8, (16, 16))
        yield attention("*bf16", 64, 16, 16, 8, (8, 8))
        yield attention("*bf16", 64, 16, 16, 8, (8, 4))
        yield attention("*bf16", 64, 16, 16, 8, (4, 4))
        return
    for width, block, kind in ((64, 16, "*bf16"), (80, 32, "*fp32"), (256, 64, "*bf16")):
        for bits in (8, 4):
            yield from moves(width, block, kind, bits)
    for bits in ((16, 16), (8, 8), (8, 4), (4, 4)):
        for width, block, rows, splits in (
            (128, 32, 128, 1),
            (128, 32, 16, 8),
            (64, 16, 128, 1),
            (80, 32, 64, 2),
            (96, 32, 64, 1),
            (256, 64, 32, 1),
        ):
            yield attention("*bf16", width, block, rows, splits, bits)
        for kind, rows in (("*fp16", 128), ("*fp32", 32)):
            yield attention(kind, 128, 32, rows, 1, bits)


def main() -> None:
    for arch in map(int, sys.argv[2:]):
        for kernel, types, constants, options in variants(sys.argv[1] == "quick"):
            names = kernel.arg_names
            signature = {name: "constexpr" if name in constants else types[name] for name in names}
            aligned = [name.endswith(("stride", "head")) or signature[name][0] == "*" for name in names]
            hints = {(place,): [["tt.divisibility", 16]] for place, is_so in enumerate(aligned) if is_so}
            source = ASTSource(kernel, signature, constants, hints)
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
            sizes = " ".join(
                f"{name}={constants[name]}"
                for name in ("D", "ROWS", "KEY_BITS", "VALUE_BITS")
                if name in constants
            )
            ahead = compiled.asm["ptx"].count("cp.async.c")
            print(kernel.fn.__name__, types[names[0]], sizes, ahead, compiled.metadata.shared, flush=True)


if __name__ == "__main__":
    main()

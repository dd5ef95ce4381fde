"""Every kernel compiles for real GPUs, and its shared memory fits in them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALLEST = 99 * 1024
"""Shared memory of a block on compute capability 8.6 and 8.9, the least of the GPUs that we expect."""


def compile_kernels(*arguments: str) -> list[str]:
    program = Path(__file__).with_name("compile_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_kernels_compile() -> None:
    lines = compile_kernels("quick", "90")
    assert len(lines) == 12
    names = {"_merge", "_store", "_squeeze", "_expand", "_choose", "_lift", "_attend"}
    assert {line.split()[0] for line in lines} == names
    decodes = [line.split() for line in lines if line.startswith("_attend")]
    assert len(decodes) == 4 and all(int(line[-2]) > 0 for line in decodes), "codes are loaded ahead, too"


@pytest.mark.slow
def test_all_variants_compile_and_fit() -> None:
    lines = compile_kernels("all", "89", "90")
    assert len(lines) == 2 * 60
    for line in lines:
        assert int(line.split()[-1]) <= SMALLEST, line

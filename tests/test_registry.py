"""The registry: file names are option values, listing imports nothing."""

import subprocess
import sys

import pytest

from kvtool.errors import KvtoolError
from kvtool.registry import Registry


def test_names_are_file_names_with_dashes_and_listing_imports_no_entry() -> None:
    code = (
        "import sys; from kvtool.cache.policies import POLICIES; print('lru' in POLICIES.names(),"
        " 'kvtool.cache.policies.lru' in sys.modules, 'numba' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["True", "False", "False"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    registry: Registry[object] = Registry("kvtool.renderers", "render", "output format")
    with pytest.raises(KvtoolError) as caught:
        registry.load("xml")
    assert caught.value.message == "unknown output format 'xml'"
    assert "json" in caught.value.hint and "terminal" in caught.value.hint


def test_an_entry_may_not_be_reached_by_path_tricks() -> None:
    with pytest.raises(KvtoolError):
        Registry("kvtool.renderers", "render", "output format").load("..cli")

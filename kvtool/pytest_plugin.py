"""The pytest plugin: a fixture for tests of prompts. kvtool itself is imported when a test asks for it."""

from collections.abc import Callable

import pytest


@pytest.fixture(name="assert_prefix_stable")
def _assert_prefix_stable() -> Callable[..., int]:
    """`kvtool.testing.assert_prefix_stable`."""
    from kvtool.testing import assert_prefix_stable

    return assert_prefix_stable

"""text: the terminal's drawing under the name that linters give it."""

from kvtool.renderers.terminal import render

__all__ = ["render"]

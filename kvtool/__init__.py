"""kvtool: see why prefixes miss the KV cache, prewarm the hot ones, serve them."""

__version__ = "0.1.0"

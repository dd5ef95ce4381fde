"""Attention on CPU cores: compiled at first use, run by torch's own workers."""

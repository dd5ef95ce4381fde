"""Prompts as their agents write them: fields, agents, slots, and edits that keep the prefix stable."""

from kvtool.prompts.normalizer import Normalizer

__all__ = ["Normalizer"]

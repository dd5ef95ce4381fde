"""Lint of prompt templates: what an expression would cost, judged by the stable text behind it."""

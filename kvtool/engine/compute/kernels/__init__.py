"""Triton kernels of the CUDA path, each beside a plain torch reference that its test compares it with."""

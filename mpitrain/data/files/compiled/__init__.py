"""Compiled kernels that decode and move samples, with numpy as fallback."""

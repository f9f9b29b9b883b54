"""Benchmarks of the GPU kernels; their tests are in tests/gpu."""

"""What the operations share: the choice of a backend, helpers for autograd, and the tools for CPU kernels in numba
(compilation, vectors in registers). The kernels themselves are in the folders of their operations.
"""

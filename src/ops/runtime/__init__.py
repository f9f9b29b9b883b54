"""What runs on a CPU through numba: how a kernel is compiled, vectors in registers, and the kernels of the sums and of
the convolution. Those of the scan, of a step and of pointwise operations lie with their operations.
"""

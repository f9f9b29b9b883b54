"""The scan kernels on complex numbers, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("scan_complex", least=48)

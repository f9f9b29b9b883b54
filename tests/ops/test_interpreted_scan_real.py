"""The scan kernels on real numbers, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("scan_real", least=24)

"""The Vandermonde and Cauchy kernels, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("sums", least=33)

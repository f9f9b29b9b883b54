"""The fused SSM kernels, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("fused", least=17)

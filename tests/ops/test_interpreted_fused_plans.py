"""The fused SSM kernels, cut in other ways, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("fused_plans", least=4)

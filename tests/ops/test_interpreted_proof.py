"""The cases by which GPU kernels prove themselves, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("proof", least=9)

"""Properties of the scan kernels, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("scan_properties", least=13)

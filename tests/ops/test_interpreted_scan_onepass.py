"""The one-pass scan kernel, in Triton's interpreter."""

from interpreted import check


def test_in_the_interpreter():
    check("scan_onepass", least=6)

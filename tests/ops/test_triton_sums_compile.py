"""The Vandermonde and Cauchy kernels compile for the GPUs we name, in both precisions, and spill nothing."""

import pytest
from compiled import costs


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_costs(target):
    rows = costs("sums", target)
    assert {row["case"] for row in rows} >= {"squares", "expand", "collapse", "pole sums", "pole gradients"}
    assert {row["real"] for row in rows} == {"fp32", "fp64"}
    for row in rows:
        assert row["spills"] == 0, row
        assert row["shared"] <= 32 * 1024, row
        # Two programs of 128 threads and more fit the registers of a multiprocessor.
        assert row["registers"] <= 255, row
        if row["real"] == "fp32":
            assert row["registers"] <= 160, row

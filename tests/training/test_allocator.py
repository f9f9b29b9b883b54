"""Freed memory is kept for the next step, unless the user has set the allocator."""

import os
import subprocess
import sys

import pytest

# Each test runs it in its own process, since the setting lasts as long as the process. Prints page faults per turn.
CODE = """
import resource
from fractal_ssm.training.allocator import keep_freed_memory
print(keep_freed_memory())
for turn in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 * 2**20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 64 * 2**20 // os.sysconf("SC_PAGE_SIZE")


def faults(**variables: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**clean, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="page faults are counted as Linux does")
def test_large_tensors_are_not_mapped_anew():
    done, *turns = faults()
    if done == "False":
        pytest.skip("the C library is not glibc")
    assert max(map(int, turns[1:])) < PAGES / 10


def test_a_setting_of_the_user_rules():
    assert faults(MALLOC_ARENA_MAX="2")[0] == "False"

"""What `import fractal_ssm` and a first layer load: nothing heavy besides torch."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import torch
before = set(sys.modules)
import fractal_ssm
fractal_ssm.Fractal(16)
heavy = {'torch._dynamo', 'numba', 'scipy', 'mpmath', 'sympy', 'triton', 'lightning', 'hydra', 'pykeops'}
print(sorted(heavy & (set(sys.modules) - before)))
"""


def test_a_layer_is_built_without_heavy_imports():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

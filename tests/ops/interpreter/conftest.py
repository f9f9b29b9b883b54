"""Tests of the Triton kernels in Triton's interpreter. It must be switched on before triton is first imported, so they
run in a process of their own, started by `tests/ops/test_triton_interpreter.py`, and are not collected elsewhere."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

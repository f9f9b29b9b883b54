"""Runs a file of `interpreter/` in a process where Triton's interpreter is on from the start.

One test file per file of that folder, so that the runner can spread them over processes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "interpreter"


def check(name: str, least: int) -> None:
    """All tests of interpreter/test_<name>.py pass, and they are at least so many."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / f"test_{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    # Were they not collected, pytest would say so with another exit status; a skip would show here.
    assert passed and int(passed[1]) >= least, done.stdout

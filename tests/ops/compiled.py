"""Runs a script of this folder that compiles kernels ahead of time, in a process where Triton's interpreter is off."""

import json
import os
import subprocess
import sys
from pathlib import Path


def costs(script: str, *arguments: str) -> list[dict]:
    """The rows that compile_<script>.py prints: what each kernel costs on the targets named."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parent / f"compile_{script}.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]

"""The GPU tests and benchmarks themselves run: tiny, in Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs them in earnest")


def test_the_tests_run_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", str(Path(__file__).parent)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 30, done.stdout


def test_the_benchmarks_run_in_the_interpreter(tmp_path):
    command = [sys.executable, "-m", "scripts.bench.gpu", "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=390, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "gpu_dry_run.csv").read_text().count("dry run") >= 8

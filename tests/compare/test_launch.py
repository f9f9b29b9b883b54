"""Runs of a comparison in other processes: none outlives it, and launchers of hydra take them over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fractal_ssm.compare.__main__ import make_plan, parse
from fractal_ssm.compare.launch import missing, sweeps
from fractal_ssm.compare.plan import Plan
from fractal_ssm.config import compose

TOYS = Path(__file__).parent.parent / "training"
_PARENT = """
import subprocess, sys, time
from fractal_ssm.compare.launch import end_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], preexec_fn=end_with_parent)
print(child.pid, flush=True)
time.sleep(300)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at a parent's death is Linux's")
def test_a_run_ends_with_a_comparison_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(child)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_launcher_of_hydra_makes_the_runs(tmp_path, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.removesuffix('_local')}_launcher")
    words = ["experiments=toy", f"launcher={launcher}", "seeds=2", f"results={tmp_path}/results"]
    words += ["training.max_epochs=1", "trainer=cpu", "--config-dir", str(TOYS / "user_configs")]
    done = subprocess.run(
        [sys.executable, "-m", "fractal_ssm.compare", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TOYS)},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plan = Plan("toy", "", {"toy": ["experiment=toy"]}, "toy", [0, 1])
    assert [run.status for run in plan.runs(tmp_path / "results")] == ["finished"] * 2


def test_folders_of_the_user_reach_the_runs(tmp_path):
    plan = make_plan(parse(["experiments=toy", "seeds=1", "--config-dir", str(TOYS / "user_configs")]))
    assert compose(plan.overrides("toy", 0)).imports == ["toy_parts"]
    (job,) = missing(plan, tmp_path)
    assert f"hydra.searchpath=[file://{TOYS / 'user_configs'}]" in job.command
    assert any(f"{TOYS / 'user_configs'}" in word for word in sweeps(plan, [job], "joblib")[0])

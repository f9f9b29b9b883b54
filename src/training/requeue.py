"""Queue a SLURM job again from inside it."""

from __future__ import annotations

import os
import subprocess


def requeue() -> tuple[bool, str]:
    """Run `scontrol requeue` for this process's job; return whether it worked, and a sentence for the user."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return False, "Not queued again: there is no SLURM_JOB_ID."
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"Not queued again: {error}. By hand: scontrol requeue {job}"
    if done.returncode:
        return False, f"Not queued again: {done.stderr.strip() or done.returncode}. By hand: scontrol requeue {job}"
    return True, f"Job {job} is queued again."

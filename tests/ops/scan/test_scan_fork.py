"""`scan` in a fork of a process that has run it on several threads, as the workers of a loader are."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, os, torch
from fractal_ssm import scan
from fractal_ssm.ops.runtime.kernel import threads_for

torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
a, b = torch.rand(8, generator=generator), torch.randn(8, 512, 8, generator=generator)

def states_and_gradients():
    gate = a.clone().requires_grad_()
    x = scan(gate, b, backend="native")
    x.square().sum().backward()
    return x.detach().numpy(), gate.grad.numpy()

def child(pipe):
    pipe.send((threads_for(b), *states_and_gradients()))

assert threads_for(b) == 2
expected = states_and_gradients()
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
process = context.Process(target=child, args=(theirs,))
process.start()
theirs.close()
threads, *found = ours.recv()
process.join()
assert process.exitcode == 0 and threads == 1, (process.exitcode, threads)
for one, other in zip(expected, found):
    torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-5, atol=1e-5)
assert threads_for(b) == 2
print("the same")
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_fork_after_a_threaded_scan_goes_on_with_one_thread():
    environment = os.environ | {"NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": "omp"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and done.stdout == "the same\n", done.stderr

"""What all tests share. Before torch is imported anywhere: one thread a process, as the tests are many small ones."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores Ctrl-C, and under nohup SIGHUP: what a run does about them could not be tested.
for _signum, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _default)


@pytest.fixture
def built_in_layers() -> list[str]:
    """Names of the layers of this package: the registry may also hold toys of tests that ran before."""
    from fractal_ssm.registry import layers

    return [name for name in layers.names() if layers.get(name).__module__.startswith("fractal_ssm.")]

"""Two processes never write one run folder at once; a process that has ended does not hold the lock."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fractal_ssm import UsageError
from fractal_ssm.train import run
from fractal_ssm.training.lock import lock_folder, unlock_folder

HOLD = """
import sys, time
from pathlib import Path
from fractal_ssm.training.lock import lock_folder
lock_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(100)
"""


def test_a_folder_is_locked_until_its_process_dies(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"in use by process {holder.pid} on .*two runs would mix"):
            lock_folder(tmp_path)
        holder.send_signal(signal.SIGKILL)
    unlock_folder(lock_folder(tmp_path))
    unlock_folder(lock_folder(tmp_path))


def test_a_child_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    lock = lock_folder(tmp_path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    unlock_folder(lock)
    unlock_folder(lock_folder(tmp_path))
    os.write(writer, b".")
    os.waitpid(child, 0)


def test_a_run_that_is_going_on_is_not_resumed(toy_config, tmp_path, monkeypatch):
    """Resuming a run that still trains is refused, and its record stays; afterwards the folder is free."""
    options = ("training.max_epochs=1",)
    refused = []

    def resume(*_) -> None:
        before = (tmp_path / "record.json").read_bytes()
        with pytest.raises(UsageError, match=f"in use by process {os.getpid()}") as caught:
            run(toy_config(*options, f"resume={tmp_path}/checkpoints/last.ckpt"), tmp_path)
        refused.append(str(caught.value))
        assert (tmp_path / "record.json").read_bytes() == before

    with monkeypatch.context() as patch:
        patch.setattr("fractal_ssm.training.session.Session.test", resume)
        with pytest.raises(KeyError):
            run(toy_config(*options), tmp_path)
    assert len(refused) == 1
    facts = run(toy_config(*options, f"resume={tmp_path}/checkpoints/last.ckpt"), tmp_path)
    assert facts["status"] == "finished"


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(number: int):
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        return flock

    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    assert lock_folder(tmp_path) is None
    unlock_folder(None)
    monkeypatch.setattr(fcntl, "flock", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        lock_folder(Path(tmp_path))

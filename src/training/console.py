"""The console of a run, which survives the loss of its output."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from rich.console import Console


class RunConsole(Console):
    """A console that falls silent when its output is gone (a closed pipe or terminal, a full disk under a log file).

    The run continues, since its folder holds the same information. Rich would end the program.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like rich's console, until the operating system refuses the output."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing any more, including the rest of the buffer."""
        self.quiet = True
        # A file without a descriptor, as in a notebook, is not flushed when the interpreter exits.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

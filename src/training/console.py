"""Where a run prints, as long as somebody reads it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from rich.console import Console


class RunConsole(Console):
    """A console that falls silent when its output is gone (a closed pipe or terminal, a full disk under a log file).

    What a run says is in its folder as well, so it goes on. Rich would end the program.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, until the operating system refuses the output."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing any more, what is left in the buffer included."""
        self.quiet = True
        # A file without a number, in a notebook say, has nothing that the interpreter would write out at its end.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

"""The progress bar in a terminal of 80 columns."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress, TextColumn

from fractal_ssm.training.metric import ACCURACY, MSE
from fractal_ssm.training.progress import ProgressBar


def test_the_bar_is_one_line_of_80_columns():
    screen = io.StringIO()
    columns = ProgressBar(ACCURACY).configure_columns(None)
    # As lightning appends them: what get_metrics gives, with three decimals.
    columns.append(TextColumn("loss: 12.345 acc: 0.123"))
    progress = Progress(*columns, console=Console(file=screen, width=80, force_terminal=True, color_system=None))
    task = progress.add_task("Epoch 10/99", total=12000)
    progress.update(task, completed=3000)
    progress.console.print(progress.get_renderable())
    (line,) = screen.getvalue().splitlines()
    assert "Epoch 10/99" in line and "3000/12000" in line and "loss: 12.345 acc: 0.123" in line


def test_a_small_error_is_not_shown_as_zero():
    assert ProgressBar(MSE).theme.metrics_format == ".3g" and ProgressBar(ACCURACY).theme.metrics_format == ".3f"

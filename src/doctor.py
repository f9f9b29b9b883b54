"""`python -m fractal_ssm.doctor [imports=my_pkg.layers,my_pkg.alphas]`: what is installed, what runs, and why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from . import registry
from .errors import UsageError
from .ops.runtime.backends import OPERATIONS, choose, obstacle
from .training.record import device_name, environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; status 2 for a mistake in the arguments, such as a plug-in that does not exist."""
    console = Console()
    try:
        registry.import_plugins(_plugins(sys.argv[1:] if arguments is None else arguments))
        for table in (versions(), devices(), backends(), parts()):
            console.print(table)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (such as `head`) has closed the pipe; at exit the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def versions() -> Table:
    """Packages, Python, platform and commit."""
    facts = environment()
    rows = [*((name, number or "not installed") for name, number in facts["versions"].items())]
    rows += [("platform", facts["platform"]), ("commit", facts["commit"] or "not a checkout")]
    return _table("Versions", ("package", "version"), rows)


def devices() -> Table:
    """Processor and GPUs."""
    rows = [("cpu", f"{device_name(torch.device('cpu'))}, {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory / 2**30
            rows.append((f"cuda:{index}", f"{device_name(torch.device('cuda', index))}, {memory:.0f} GiB"))
    else:
        built = torch.version.cuda or torch.version.hip
        rows.append(("gpu", "none found" if built else "none: this build of torch has no GPU support"))
    return _table("Devices", ("device", "what it is"), rows)


def backends() -> Table:
    """Each operation's backends per device type: which one auto takes, which others run, and why the rest cannot."""
    rows = []
    for kind in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        device = torch.device(kind)
        for name, operation in OPERATIONS.items():
            chosen = choose(name, "auto", device)
            for backend in operation.backends:
                reason = obstacle(backend, kind)
                state = f"no: {reason}" if reason else "runs, chosen by auto" if backend == chosen else "runs"
                rows.append((name, kind, backend, state))
    return _table("Backends", ("operation", "device", "backend", "state"), _reasons_once(rows))


def _reasons_once(rows: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """The rows, with the reason why a backend cannot run only at its first occurrence."""
    told: dict[str, str] = {}
    short = []
    for operation, kind, name, state in rows:
        if state.startswith("no:") and told.setdefault(name, operation) != operation:
            state = f"no, see {told[name]}"
        short.append((operation, kind, name, state))
    return short


def parts() -> Table:
    """All registered names, plug-ins included; those of plug-ins with their module."""
    rows = [
        (kind.kind, ", ".join(_with_origin(name, kind.get(name).__module__) for name in kind.names()))
        for kind in (registry.layers, registry.measures, registry.alphas, registry.datasets)
    ]
    return _table("Registered parts", ("kind", "names"), rows)


def _plugins(arguments: Iterable[str]) -> list[str]:
    modules = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key != "imports" or not value:
            raise UsageError(f"The doctor takes imports=MODULE[,MODULE...], got {argument!r}.")
        modules += [module.strip() for module in value.strip("[]").split(",")]
    return modules


def _with_origin(name: str, module: str) -> str:
    return name if module.split(".")[0] == __package__ else f"{name} ({module})"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    sys.exit(main())

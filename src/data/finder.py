"""Find a user's copy of a data set in the folder layouts of the release and of published code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

# The archive unpacks to a folder within a folder of the same name. The outer one holds older copies of some tasks; the
# inner one, which published code reads, comes first.
_ROOTS = (
    "lra_release/lra_release/lra_release",
    "lra_release/lra_release",
    "raw_datasets/lra_release/lra_release",
    "raw_datasets/lra_release",
    "raw_datasets",
    "",
    "lra_release",
)


@dataclass(frozen=True)
class Expected:
    """The files that a task expects.

    Attributes:
        task: registered name.
        folders: names that the folder has in the known layouts.
        files: relative paths that must all exist for a folder to be accepted.
        tree: the layout, drawn for the error message, relative to data_dir.
        size: size of the data, in words.
        origin: where the data come from.
        instead: what to do without the data.
        by_name: accept only these folder names, because other tasks have files of the same names. Otherwise data_dir
            itself, an archive root, or a folder of any name directly in one of them is accepted too.
    """

    task: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    tree: str
    size: str
    origin: str
    instead: str
    by_name: bool = False

    def find_all(self, data_dir: Path) -> list[Path]:
        """Every folder that fits, best first; renamed folders directly under data_dir or an archive root come last."""
        roots = [Path(data_dir) / root for root in _ROOTS]
        names = self.folders if self.by_name else (*self.folders, "")
        found = [root / name for root in roots for name in names if self.fits(root / name)]
        for root in roots:
            if root.is_dir() and not self.by_name:
                found += [path for path in sorted(root.iterdir()) if path.is_dir() and self.fits(path)]
        return list(dict.fromkeys(path.resolve() for path in found))

    def find(self, data_dir: Path) -> Path | None:
        """The folder to read, or None."""
        return next(iter(self.find_all(data_dir)), None)

    def require(self, data_dir: Path) -> Path:
        """The folder to read.

        Raises:
            UsageError: there is none; the message shows the expected tree, what is incomplete, and what to do.
        """
        found = self.find(data_dir)
        if found is None:
            raise UsageError(self.missing(data_dir))
        return found

    def missing(self, data_dir: Path) -> str:
        """The message for files that are not there."""
        lines = [f"No files of '{self.task}' under {Path(data_dir).resolve()}.", self.how_to_get(data_dir)]
        lines.append("Folders may also lie in lra_release/, lra_release/lra_release/ or raw_datasets/, under any name.")
        return "\n".join(lines)

    def how_to_get(self, data_dir: Path) -> str:
        """The expected files, folders that lack some of them, the origin of the data, and what to do without them."""
        lines = [f"Expected there ({self.size}):", self.tree]
        for path, lacking in self._incomplete(data_dir):
            lines.append(f"Incomplete: {path} lacks {', '.join(lacking)}: copy or unpack it again.")
        return "\n".join([*lines, self.origin, self.instead])

    def fits(self, folder: Path) -> bool:
        """Whether a folder holds all the files."""
        return all((folder / name).exists() for name in self.files)

    def _incomplete(self, data_dir: Path) -> list[tuple[Path, list[str]]]:
        candidates = [Path(data_dir) / root / folder for root in _ROOTS for folder in self.folders]
        lacking = [(path, [name for name in self.files if not (path / name).exists()]) for path in candidates]
        return [(path, names) for path, names in lacking if path.is_dir()]

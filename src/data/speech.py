"""Speech Commands: one spoken word as 16,000 raw samples, 35 or 10 classes."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..registry import register_dataset
from .base import SPLITS
from .cache import Cache, source_stamp
from .cached import STAND_IN_HINT, CachedData
from .finder import Expected
from .mapped import FixedLength
from .options import check_required
from .progress import progress
from .splits import consecutive
from .stand_in import tones

_LENGTH = 16_000
# Class order of the published loader.
WORDS = (
    "bed cat down five forward go house left marvin no on right sheila tree up visual yes backward bird dog eight "
    "follow four happy learn nine off one seven six stop three two wow zero"
).split()
_LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
_STAND_IN = {"train": 700, "val": 140, "test": 140}
EXPECTED = Expected(
    task="sc",
    folders=("speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "speech_commands", "sc"),
    files=(*_LISTS.values(), "yes", "zero"),
    tree="  speech_commands_v0.02/\n    validation_list.txt  testing_list.txt\n"
    "    yes/*.wav  no/*.wav  ...  (35 folders)",
    size="105,829 clips, 2.4 GB packed",
    origin=(
        "Unpack speech_commands_v0.02.tar.gz with "
        "`python -m fractal_ssm.data extract speech_commands_v0.02.tar.gz --to DATA_DIR/speech_commands_v0.02`."
    ),
    instead=STAND_IN_HINT,
)


@register_dataset("sc")
class SpeechCommands(CachedData):
    """Clips of one second at 16 kHz as (16000, 1), shorter ones zero-padded at the end; 35 classes.

    Samples are int16 / 2**15, normalised at each time step by mean and standard deviation (plus 1e-5) of the training
    clips, as published.

    Args:
        data_dir: root of all data.
        source: "release" or "auto" reads the user's folder, "stand-in" makes up sounds of the same shape.
        n_train, n_val, n_test: number of clips to use, spread evenly over the split's list; null takes all.
        test_stride: keep every n-th sample of the test clips: 2 is the half-rate evaluation of a model trained at full
            rate, and `dt_scale("test")` is the factor on its step.
    """

    name = "sc"
    title = "Speech Commands"
    sample_bytes = 2 * _LENGTH
    expected = EXPECTED
    n_classes = len(WORDS)
    d_input = 1
    l_max = _LENGTH

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        test_stride: int = 1,
    ):
        super().__init__(data_dir, source, {"train": n_train, "val": n_val, "test": n_test})
        check_required(1, self.name, "every n-th sample", _LENGTH, test_stride=test_stride)
        self.test_stride = test_stride

    def split(self, name: str) -> Waveforms:
        """The samples of one split, (waveform, label); see the base class."""
        stride = self.test_stride if name == "test" else 1
        return Waveforms(self.cache.folder, self.indices(name), stride)

    def dt_scale(self, name: str) -> float:
        """See the base class."""
        return float(self.test_stride) if name == "test" else 1.0

    def describe(self) -> dict[str, Any]:
        """See the base class; `test_stride` is 2 for a half-rate evaluation."""
        return {**super().describe(), "test_stride": self.test_stride}

    def _load(self) -> Cache:
        options = {"n": self.wanted, "layout": 1}
        folder = self._release_folder()
        if folder is None:
            return self._store({"source": "stand-in", **options}, self._write_stand_in)
        clips = {split: _spread(paths, self.wanted[split], split) for split, paths in _lists(folder).items()}
        parameters = {
            "source": "release",
            "files": [source_stamp(folder / name) for name in _LISTS.values()],
            "clips": {split: len(paths) for split, paths in clips.items()},
            **options,
        }
        return self._store(parameters, lambda target: self._write_release(target, folder, clips))

    def _members(self) -> dict[str, np.ndarray]:
        return consecutive(self.cache.facts["counts"])

    def _convention(self) -> str:
        return "drawn apart" if self.cache.parameters["source"] == "stand-in" else "release lists"

    def _write_release(self, target: Path, folder: Path, clips: dict[str, list[str]]) -> dict[str, Any]:
        names = [name for split in SPLITS for name in clips[split]]
        sounds = np.lib.format.open_memmap(target / "sounds.npy", "w+", np.int16, (len(names), _LENGTH))
        with progress("Reading speech", len(names), "clips") as advance:
            for index, name in enumerate(names):
                sound = _read_wav(folder / name)
                sounds[index, : len(sound)] = sound
                advance(1)
        labels = [WORDS.index(name.partition("/")[0]) for name in names]
        return self._finish(target, sounds, labels, {split: len(clips[split]) for split in SPLITS}, str(folder))

    def _write_stand_in(self, target: Path) -> dict[str, Any]:
        counts = {split: self.wanted[split] or _STAND_IN[split] for split in SPLITS}
        sounds, labels = tones(sum(counts.values()), np.random.default_rng(0), len(WORDS), _LENGTH)
        np.save(target / "sounds.npy", sounds)
        return self._finish(target, sounds, labels, counts, None)

    @staticmethod
    def _finish(
        target: Path, sounds: np.ndarray, labels, counts: dict[str, int], read_from: str | None
    ) -> dict[str, Any]:
        mean, std = _statistics(sounds[: counts["train"]])
        np.save(target / "scale.npy", np.stack([mean, std]).astype(np.float32))
        np.save(target / "labels.npy", np.array(labels, dtype=np.uint8))
        return {"read_from": read_from, "counts": counts}


class Waveforms(FixedLength):
    """Samples ((L, 1) float32, label) of a cache of sounds: every `stride`-th step, each normalised on its own."""

    def __init__(self, folder: Path, indices: np.ndarray, stride: int):
        self.stride = stride
        super().__init__(folder, indices)

    def _open(self) -> None:
        super()._open()
        self._sounds = self._array("sounds")
        mean, std = np.load(self.folder / "scale.npy")
        self._mean, self._std = mean[:: self.stride], std[:: self.stride] + np.float32(1e-5)

    def _gather(self, samples: np.ndarray) -> np.ndarray:
        # Read whole clips, which are contiguous, before leaving out steps.
        sounds = np.asarray(self._sounds)[samples][:, :: self.stride].astype(np.float32)
        sounds /= np.float32(2**15)
        sounds -= self._mean
        sounds /= self._std
        return sounds[:, :, None]


def _lists(folder: Path) -> dict[str, list[str]]:
    """Split -> clip names "word/file.wav", sorted; clips on neither list are for training."""
    everything = {f"{word}/{path.name}" for word in WORDS for path in (folder / word).glob("*.wav")}
    listed = {split: _listed(folder / name) for split, name in _LISTS.items()}
    for split, names in listed.items():
        lost = sorted(names - everything)
        if lost:
            first = lost[0][:80]
            raise UsageError(f"{folder} lacks {len(lost):,} clips of {_LISTS[split]}, {first} first: unpack again.")
    train = everything - listed["val"] - listed["test"]
    for split, names in {"train": train, **listed}.items():
        if not names:
            raise UsageError(f"{folder} holds no clips for {split}: copy or unpack the data again.")
    return {"train": sorted(train), "val": sorted(listed["val"]), "test": sorted(listed["test"])}


def _listed(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="utf-8").split())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a list of clips ({error}): unpack the data again.") from error


def _spread(names: list[str], wanted: int | None, split: str) -> list[str]:
    """`wanted` evenly spaced names, so that all words occur; None keeps all."""
    if wanted is None:
        return names
    if wanted > len(names):
        raise UsageError(f"sc holds {len(names):,} clips for {split}, dataset.n_{split} asks for {wanted:,}.")
    return [names[index * len(names) // wanted] for index in range(wanted)]


def _read_wav(path: Path) -> np.ndarray:
    """Up to 16,000 samples, int16, of a mono 16-bit file at 16 kHz."""
    try:
        with wave.open(str(path), "rb") as file:
            form = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if form != (1, 2, _LENGTH):
                raise UsageError(f"{path} has (channels, bytes, rate) = {form}; (1, 2, {_LENGTH}) is expected.")
            wanted = min(file.getnframes(), _LENGTH)
            samples = np.frombuffer(file.readframes(wanted), dtype="<i2")
    except UsageError:
        raise
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is not a whole wav file ({error}): unpack the data again.") from error
    if not wanted or len(samples) < wanted:
        raise UsageError(f"{path} holds {len(samples):,} of {wanted:,} samples: unpack the data again.")
    return samples


def _statistics(sounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n - 1 in the denominator) over clips at each time step, of samples / 2**15."""
    total, squares = np.zeros(_LENGTH), np.zeros(_LENGTH)
    for start in range(0, len(sounds), 1024):
        block = sounds[start : start + 1024] / 2.0**15
        total += block.sum(0)
        squares += (block**2).sum(0)
    mean = total / len(sounds)
    variance = (squares - len(sounds) * mean**2) / max(len(sounds) - 1, 1)
    return mean, np.sqrt(variance.clip(min=0.0))

"""Token ids as the published LRA pipelines number them: special tokens, then by falling frequency, then by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..errors import UsageError

PAD, UNK, EOS = "<pad>", "<unk>", "<eos>"
SPECIALS = (PAD, UNK, EOS)
_CODE_POINTS = 0x110000


class Vocabulary:
    """Tokens and their ids: `<pad>` 0, `<unk>` 1, `<eos>` 2, then the others in the order given.

    Args:
        tokens: the tokens after the special ones, without repetition.
    """

    def __init__(self, tokens: Iterable[str]):
        self.tokens = SPECIALS + tuple(tokens)
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens):
            raise UsageError("A vocabulary cannot hold a token twice.")

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], min_freq: int = 1) -> Vocabulary:
        """Keep the tokens seen at least `min_freq` times, most frequent first, ties by token.

        >>> Vocabulary.from_counts({"b": 3, "a": 3, "c": 9, "d": 1}, min_freq=2).tokens[3:]
        ('c', 'a', 'b')
        """
        kept = [token for token, count in counts.items() if count >= min_freq]
        return cls(sorted(kept, key=lambda token: (-counts[token], token)))

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Id of a token; 1 for an unknown one."""
        return self._ids.get(token, 1)

    @property
    def dtype(self) -> np.dtype:
        """Smallest unsigned integer type that holds every id."""
        return np.min_scalar_type(len(self) - 1)

    def character_table(self) -> np.ndarray:
        """(0x110000,) ids by Unicode code point, for vocabularies of single characters; unknown ones are 1."""
        table = np.full(_CODE_POINTS, 1, dtype=self.dtype)
        for token, index in self._ids.items():
            if len(token) == 1:
                table[ord(token)] = index
        return table


def code_points(text: str, limit: int) -> np.ndarray:
    """Unicode code points of the first `limit` characters, uint32.

    >>> code_points("aé", 5).tolist()
    [97, 233]
    """
    return np.frombuffer(text[:limit].encode("utf-32-le", "surrogatepass"), dtype="<u4")


class CharacterCounter:
    """Counts characters of many texts without a Python loop over them."""

    def __init__(self):
        self._counts = np.zeros(_CODE_POINTS, dtype=np.int64)

    def add(self, points: np.ndarray) -> None:
        """Count code points, as `code_points` returns them."""
        counts = np.bincount(points)
        self._counts[: len(counts)] += counts

    def add_counts(self, points: np.ndarray, counts: np.ndarray) -> None:
        """Add counts (n,) of different code points (n,)."""
        self._counts[points] += counts

    def counts(self) -> dict[str, int]:
        """Character -> how often it was seen; unseen characters are left out."""
        return {chr(point): int(self._counts[point]) for point in np.flatnonzero(self._counts)}

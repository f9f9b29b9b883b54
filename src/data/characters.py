"""Character-level ids of texts, as the S4 and S5 repositories make them: the first l_max - 1 characters and `<eos>`."""

from __future__ import annotations

import numpy as np

from .vocabulary import EOS, CharacterCounter, Vocabulary, code_points


class CharacterEncoder:
    """Turns texts into ids of a vocabulary of characters.

    Args:
        vocabulary: the characters.
        l_max: longest sequence, `<eos>` included.
    """

    def __init__(self, vocabulary: Vocabulary, l_max: int):
        self._table = vocabulary.character_table()
        self._end = np.array([vocabulary.id(EOS)], dtype=self._table.dtype)
        self._limit = l_max - 1
        self.dtype = self._table.dtype

    def __call__(self, text: str) -> np.ndarray:
        """Ids (L,) of one text, 1 <= L <= l_max."""
        return np.concatenate([self._table[code_points(text, self._limit)], self._end])


def count_characters(texts, l_max: int, counter: CharacterCounter) -> None:
    """Add the first l_max - 1 characters of each text, which are those kept, to the counter."""
    for text in texts:
        counter.add(code_points(text, l_max - 1))

"""Made-up data in the shape of tasks whose files only the user can provide: for trials, never for the benchmark.

Each has a learnable structure that is spread over the whole sequence, so a run that does not learn points to a fault in
the set-up. Results on them do not predict results on the real task.
"""

from __future__ import annotations

import numpy as np

_CONSONANTS, _VOWELS = "bcdfghklmnprstvw", "aeiou"


def reviews(n: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Texts of 60..500 made-up words and their tone; one word in ten has a tone, and 4 in 5 of those match the text's.

    Returns:
        n texts, and labels (n,) uint8 that alternate 0, 1.
    """
    words = _words(240, rng)
    tones, neutral = (words[:20], words[20:40]), words[40:]
    labels = np.arange(n, dtype=np.uint8) % 2
    texts = []
    for label in labels:
        length = int(rng.integers(60, 501))
        chosen = rng.choice(neutral, size=length)
        marked = rng.random(length) < 0.1
        agrees = rng.random(length) < 0.8
        for tone in (0, 1):
            # A word has this tone if it agrees with a text of this tone, or disagrees with one of the other tone.
            places = marked & (agrees == (label == tone))
            chosen[places] = rng.choice(tones[tone], size=int(places.sum()))
        texts.append(" ".join(chosen) + ".")
    return texts, labels


def document_pairs(n: int, rng: np.random.Generator) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Pairs of texts of 60..500 made-up words; label 1 if both have the same one of 8 topics.

    Rule: three words in ten of a text belong to its topic. Words of a topic use only the two consonants of that topic,
    so the topic shows as an excess of these consonants. Neither text alone says anything about the label.

    Returns:
        n pairs, and labels (n,) uint8 that alternate 0, 1.
    """
    common = _words(240, rng)
    topics = [_words(20, rng, _CONSONANTS[2 * topic : 2 * topic + 2]) for topic in range(8)]
    labels = np.arange(n, dtype=np.uint8) % 2
    pairs = []
    for label in labels:
        first = int(rng.integers(8))
        second = first if label else (first + int(rng.integers(1, 8))) % 8
        pairs.append(tuple(_document(topics[topic], common, rng) for topic in (first, second)))
    return pairs, labels


def gratings(n: int, rng: np.random.Generator, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Noisy colour images of stripes: class = 5 * (fine or coarse) + direction, phase and colour at random.

    Returns:
        images (n, 3, side, side) uint8, and labels (n,) uint8 in 0..9.
    """
    labels = (np.arange(n) % 10).astype(np.uint8)
    angle = np.pi * (labels % 5) / 5
    cycles = np.where(labels < 5, 3.0, 6.0)
    y, x = np.mgrid[:side, :side] / side
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    phase = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    stripes = np.sin(2 * np.pi * cycles[:, None, None] * along + phase)
    colour = rng.uniform(0.5, 1.0, (n, 3, 1, 1))
    images = 122 + 70 * colour * stripes[:, None] + rng.normal(0, 20, (n, 3, side, side))
    return images.clip(0, 255).astype(np.uint8), labels


def tones(n: int, rng: np.random.Generator, classes: int, length: int = 16_000) -> tuple[np.ndarray, np.ndarray]:
    """Short sounds between silences: class = pitch, onset and loudness at random, noise added.

    Returns:
        sounds (n, length) int16, and labels (n,) uint8 below `classes`.
    """
    labels = (np.arange(n) % classes).astype(np.uint8)
    time = np.arange(length) / length
    pitch = 60.0 * 2 ** (labels * 4 / classes)
    onset = rng.uniform(0, 0.4, (n, 1))
    envelope = np.exp(-(((time - onset - 0.25) / 0.12) ** 2))
    loudness = rng.uniform(3000, 12000, (n, 1))
    phase = rng.uniform(0, 2 * np.pi, (n, 1))
    sound = loudness * envelope * np.sin(2 * np.pi * pitch[:, None] * time + phase)
    return (sound + rng.normal(0, 100, (n, length))).astype(np.int16), labels


def _words(n: int, rng: np.random.Generator, consonants: str = _CONSONANTS) -> np.ndarray:
    """(n,) different words of two or three syllables, a consonant and a vowel each."""
    found: dict[str, None] = {}
    while len(found) < n:
        syllables = int(rng.integers(2, 4))
        pieces = [str(rng.choice(list(consonants))) + str(rng.choice(list(_VOWELS))) for _ in range(syllables)]
        found["".join(pieces)] = None
    return np.array(list(found))


def _document(topic: np.ndarray, common: np.ndarray, rng: np.random.Generator) -> str:
    length = int(rng.integers(60, 501))
    chosen = rng.choice(common, size=length)
    marked = rng.random(length) < 0.3
    chosen[marked] = rng.choice(topic, size=int(marked.sum()))
    return " ".join(chosen) + "."

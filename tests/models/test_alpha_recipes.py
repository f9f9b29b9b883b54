"""What an alpha recipe of a plug-in returns: read where it is K numbers, else refused in words."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from fractal_ssm import Fractal, UsageError
from fractal_ssm.models.fractal.alpha import initial_alphas
from fractal_ssm.registry import alphas


@pytest.fixture
def recipe(monkeypatch):
    """(value) registers a recipe "mine" that returns it."""
    alphas.names()
    return lambda value: monkeypatch.setitem(alphas._parts, "mine", lambda K: value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "alpha {'name': 'mine'} gives str '0.5'. A recipe returns an array of numbers"),
        (["a", "b"], "gives list"),
        (None, "gives NoneType 'None'"),
        ({0.1, 0.2}, "gives set"),
        ([0.1, [0.2]], "gives list '[0.1, [0.2]]'"),
        (np.array([0.1j, 0.2]), "gives ndarray"),
        (np.array([True, False]), "gives ndarray"),
        (0.5, "gives an array of shape () for 2 blocks. Return shape (2,)."),
        (np.zeros((2, 1)), "gives an array of shape (2, 1) for 2 blocks. Return shape (2,)."),
        (np.zeros(3), "gives 3 value(s) for 2 blocks."),
        ([0.1, float("nan")], "alpha must lie in [0, 1), got nan"),
        ([0.1, float("inf")], "alpha must lie in [0, 1), got inf"),
        ([0.1, 1.0], "alpha must lie in [0, 1), got 1"),
    ],
)
def test_what_is_refused(recipe, value, words):
    recipe(value)
    with pytest.raises(UsageError, match=re.escape(words)):
        initial_alphas("mine", 2)
    with pytest.raises(UsageError, match=re.escape(words)):
        Fractal(2, d_state=8, n_alphas=2, alpha="mine")


@pytest.mark.parametrize(
    "value",
    [(0.25, 0.5), [0.25, 0.5], torch.tensor([0.25, 0.5], requires_grad=True), np.float32([0.25, 0.5])],
    ids=["tuple", "list", "tensor", "float32"],
)
def test_what_is_read(recipe, value):
    recipe(value)
    found = initial_alphas("mine", 2)
    assert found.dtype == np.float64 and found.tolist() == [0.25, 0.5]

"""The public names: each loads, and what a type checker is told is what is loaded."""

from __future__ import annotations

import ast
import inspect

import fractal_ssm


def test_every_name_loads():
    for name in fractal_ssm.__all__:
        assert getattr(fractal_ssm, name) is not None


def test_type_checkers_see_the_same_names():
    block = next(node for node in ast.parse(inspect.getsource(fractal_ssm)).body if isinstance(node, ast.If))
    imported = {
        alias.asname: f"{node.module}" if node.module else alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == fractal_ssm._EXPORTS

"""Options and settings of the command line in any order, and what is said to those that do not exist."""

from __future__ import annotations

import pytest
from hydra._internal.utils import get_args_parser

from fractal_ssm import UsageError
from fractal_ssm.arguments import in_order


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        ("", ""),
        ("b=1 a=2", "b=1 a=2"),
        ("experiment=x --cfg job seed=1", "--cfg job experiment=x seed=1"),
        ("a=1 -m b=1,2 --config-dir d=e c=3", "-m --config-dir d=e a=1 b=1,2 c=3"),
        ("a=1 --cfg=all ~b +c=-1", "--cfg=all a=1 ~b +c=-1"),
        ("a=1 --info defaults b=2", "--info defaults a=1 b=2"),
        ("a=1 -i b=2", "-i all a=1 b=2"),
        ("a=1 -sc install=bash", "-sc a=1 install=bash"),
    ],
)
def test_options_come_first(given, ordered):
    assert in_order(given.split()) == ordered.split()
    get_args_parser().parse_args(in_order(given.split()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--seed 1", "Unknown option '--seed'."),
        ("--seed=1", "A setting is key=value, without dashes: seed=..."),
        ("--config_dir x", "Did you mean '--config-dir'?"),
        ("-x", "Unknown option '-x'."),
        ("a=1 --cfg", "The option --cfg takes one of job, hydra, all, --cfg job|hydra|all, got ''."),
        ("--cfg jobs", "got 'jobs'."),
        ("--cfg -m", "got ''."),
        ("--resolve", "--resolve changes what --cfg prints and does nothing alone. Add --cfg job."),
        ("--package model", "--package changes what --cfg prints"),
        ("-m --cfg job seed=1,2", "--multirun and --cfg ask for different things."),
        ("-sc", "--shell-completion takes install=SHELL"),
        ("-sc query=bash", "--shell-completion takes install=SHELL"),
        ("-sc install=tcsh", "--shell-completion takes install=SHELL"),
        ("--config-dir", "The option --config-dir takes a value, --config-dir ..., got ''."),
    ],
)
def test_mistakes(given, words):
    with pytest.raises(UsageError) as caught:
        in_order(given.split())
    assert words in str(caught.value)


def test_every_option_of_hydra_is_known():
    for action in get_args_parser()._actions:
        for option in action.option_strings:
            if option in ("--resolve", "--package", "-p"):
                value = [] if action.nargs == 0 else ["x"]
                assert in_order(["a=1", option, *value, "--cfg", "job"]) == [option, *value, "--cfg", "job", "a=1"]
            elif option in ("--shell-completion", "-sc"):
                assert in_order(["install=bash", option]) == [option, "install=bash"]
            elif action.nargs == 0:
                assert in_order(["a=1", option, "b=2"]) == [option, "a=1", "b=2"]
            elif action.nargs is None:
                value = action.choices[0] if action.choices else "x"
                assert in_order(["a=1", option, value, "b=2"]) == [option, value, "a=1", "b=2"]
            else:
                assert in_order(["a=1", option, "b=2"]) == [option, "all", "a=1", "b=2"]
                for value in action.choices:
                    assert in_order(["a=1", option, value]) == [option, value, "a=1"]

"""Options and settings of the command line in any order, and what is said to those that do not exist."""

from __future__ import annotations

import pytest
from hydra._internal.utils import get_args_parser

from fractal_ssm import UsageError, train
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
                if option == "--experimental-rerun":
                    with pytest.raises(UsageError, match="refused: it unpickles"):
                        in_order(["a=1", option, value])
                    continue
                assert in_order(["a=1", option, value, "b=2"]) == [option, value, "a=1", "b=2"]
            else:
                assert in_order(["a=1", option, "b=2"]) == [option, "all", "a=1", "b=2"]
                for value in action.choices:
                    assert in_order(["a=1", option, value]) == [option, value, "a=1"]


# Arguments of `python -m train`, and words of the one message that they get.
REFUSED = [
    ("--experimental-rerun x.pickle", "refused: it unpickles the file"),
    ("--experimental-rerun=x.pickle", "refused: it unpickles the file"),
    ("--package nope --cfg job", "--package takes a key of the configuration, got 'nope'. Keys: seed, imports"),
    ("-p modle --cfg job", "Did you mean 'model'?"),
    ("-p training.batchsize --cfg job", "Did you mean 'training.batch_size'?"),
    ("--config-name=../x", "There is no configuration '../x' for --config-name"),
    ("-cn x", "leave the option out"),
    ("--config-path=nope", "--config-path takes a package"),
    ("--config-dir=nope", "--config-dir takes a folder, and there is none at"),
    ("--resolve --cfg hydra", "Use --cfg all --resolve"),
    ("=", "'=' names no key. A setting is key=value"),
    ("~", "'~' names no key"),
    ("~=", "'~=' names no key"),
    ("+=", "'+=' names no key"),
    ("++", "'++' names no key"),
    ("@", "puts a group under another key"),
    ("seed=1,2", "seed takes one value, got 1,2. A list is seed=[1,2]; to run once for each value add -m."),
    ("model=s4,s5", "model takes one value, got s4,s5."),
    ("model@foo=s5", "Choose it in its own place: model=s5"),
    ("+model@foo.bar=s5", "Choose it in its own place: model=s5"),
    ("seed=${seed}", "A value refers to itself through ${...}."),
    ("seed=${training.batch_size} training.batch_size=${seed}", "A value refers to itself"),
    ("seed=${nope}", "A value refers to ${nope}, and the configuration has no key 'nope'."),
    ("seed=${training.batchsize}", "Did you mean 'training.batch_size'?"),
    ("runs_dir=${nope}", "has no key 'nope'"),
    ("seed=${oc.env:NOT_SET_HERE}", "environment variable NOT_SET_HERE, which is not set"),
    ("seed=${nores:1}", "there is no function 'nores'"),
    ("seed=${", "cannot be read as key=value"),
    ("hydra/launcher=nope", "Unknown hydra/launcher 'nope'. Known: basic"),
    ("hydra/launcher=joblibb", "pip install 'fractal-ssm[sweep]'"),
    ("optimizer.betas=[a,b]", "optimizer.betas[0] takes a number, got 'a'."),
    ("optimizer.betas=[[1],2]", "optimizer.betas takes two numbers in [0, 1), got [[1], 2.0]."),
    ("optimizer.betas={a:1}", "optimizer.betas takes a list, optimizer.betas=[...], got {a:1}."),
    ("training.stuck_steps=1000000000000000000000000", "training.stuck_steps must be at most 1000000000"),
    ("training.max_steps=1e400", "training.max_steps takes a whole number"),
    ("seed=" + "x" * 1_000_000, "has 1,000,005 characters; at most 10,000 are read"),
    ("x" * 1_000_000 + "=1", "has 1,000,002 characters"),
    ("data_dir=" + "x/" * 500_000, "has 1,000,009 characters"),
    ("seed=" + "x" * 9_000, "seed takes a whole number, got"),
    ("experiment=" + "x" * 5_000, "longer than a file's name can be"),
    ("[" * 2_000, "is nested 2000 brackets deep; at most 50 are read"),
    ("model.layer.name=" + "[" * 100 + "]" * 100, "is nested 100 brackets deep"),
    ("model.layer.name=" + "{a:" * 60 + "1" + "}" * 60, "is nested 60 brackets deep"),
    ("seed=" + "9" * 5_000, "holds a number of 5,000 digits"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[given[:40] for given, _ in REFUSED])
def test_a_mistake_is_one_short_message(given, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train", *given.split()])
    with pytest.raises(SystemExit) as end:
        train.main()
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == ""
    assert said.err.startswith("Error: ") and words in said.err
    assert len(said.err.splitlines()) < 25 and len(said.err) < 2_000
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_the_layer_of_the_command_line_without_options_of_the_files(monkeypatch, capsys):
    """--cfg job shows the configuration after the drop; an option that was set is refused with the command without."""
    words = ["experiment=lra/fractal-listops", "model.layer.name=lru", "model.layer.d_state=8"]
    monkeypatch.setattr("sys.argv", ["train", "--cfg", "job", "--package", "model.layer", *words])
    train.main()
    shown = capsys.readouterr().out
    assert "name: lru" in shown and "d_state: 8" in shown and "alpha" not in shown
    monkeypatch.setattr("sys.argv", ["train", *words, "model.layer.alpha.name=linspace", "seed=3", "--cfg", "job"])
    with pytest.raises(SystemExit):
        train.main()
    said = capsys.readouterr().err
    assert "The layer 'lru' has no option 'alpha'. Options: " in said
    assert f"Without it: python -m train --cfg job {' '.join(words)} seed=3" in said

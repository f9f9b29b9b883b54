"""Plans: what they hold, what is missing of them, and the command line that makes them."""

from __future__ import annotations

import os
import signal

import pytest
from fake_runs import make_run

from fractal_ssm import UsageError
from fractal_ssm.compare import launch, progress
from fractal_ssm.compare.__main__ import main, make_plan, parse, seeds_of
from fractal_ssm.compare.plan import Plan, ablation, known_ablations, load
from fractal_ssm.training.lock import lock_folder, unlock_folder


@pytest.fixture
def plan() -> Plan:
    arms = {"a": ["experiment=lra/s5-listops"], "b": ["experiment=lra/s4d-listops"]}
    return Plan("test", "Is b better?", arms, "a", seeds=(0, 1), common=["budget=smoke"])


def test_what_is_missing(plan, tmp_path):
    assert [(job.arm, job.seed) for job in launch.missing(plan, tmp_path)] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    make_run(plan.folder(tmp_path, "a", 0), 0.5)
    make_run(plan.folder(tmp_path, "b", 0), 0.5, status="failed", error="diverged")
    killed = make_run(plan.folder(tmp_path, "a", 1), 0.5, 1, status="running")
    (killed / "checkpoints").mkdir()
    (killed / "checkpoints" / "last.ckpt").touch()
    jobs = launch.missing(plan, tmp_path)
    assert [(job.arm, job.seed, job.resume is not None) for job in jobs] == [("a", 1, True), ("b", 1, False)]
    assert f"resume={killed}/checkpoints/last.ckpt" in jobs[0].command
    assert next((job.arm, job.seed) for job in launch.missing(plan, tmp_path, retry=True)) == ("b", 0)


def test_a_run_of_another_process_is_left_to_it(plan, tmp_path):
    folder = make_run(plan.folder(tmp_path, "a", 0), 0.5, status="running")
    lock = lock_folder(folder)
    assert ("a", 0) not in [(job.arm, job.seed) for job in launch.missing(plan, tmp_path)]
    unlock_folder(lock)
    assert ("a", 0) in [(job.arm, job.seed) for job in launch.missing(plan, tmp_path)]


def test_a_plan_is_kept_and_another_refused(plan, tmp_path):
    plan.save(tmp_path)
    assert load(tmp_path) == Plan(**{**vars(plan), "seeds": [0, 1]})
    plan.save(tmp_path)
    other = Plan("test", "", {"a": plan.arms["a"]}, "a")
    with pytest.raises(UsageError, match="other arms"):
        other.save(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageError, match="not a plan"):
        load(tmp_path)


def test_a_dry_run_counts_no_runs_of_another_plan(plan, tmp_path, capsys):
    plan.save(tmp_path)
    words = ["experiments=lra/s5-listops,lra/s4d-listops", "budget=smoke", "model.d_model=24", f"results={tmp_path}"]
    assert main([*words, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "holds a comparison with other" in said.err and "are there" not in said.out


@pytest.mark.parametrize("place", ["", "file", "file/under", "dangling"])
def test_a_results_folder_that_cannot_be(plan, tmp_path, capsys, place):
    (tmp_path / "file").write_text("dear")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    results = tmp_path / place if place else ""
    words = ["experiments=lra/s5-listops,lra/s4d-listops", "budget=smoke", "seeds=1", f"results={results}"]
    assert main(words) == 2
    assert "Error: results" in capsys.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runs_first(tmp_path, monkeypatch, capsys, signum):
    """SIGTERM alone would end this process only, and its runs would go on without it."""
    ended = []

    class Process:
        pid, terminate, wait = 0, lambda self: ended.append("told"), lambda self: ended.append("waited")

        def poll(self):
            os.kill(os.getpid(), signum)

    def start(pool, job):
        job.process = Process()
        return job

    monkeypatch.setattr(launch.Pool, "_start", start)
    words = ["experiments=lra/s5-listops", "budget=smoke", "seeds=1", f"results={tmp_path / 'results'}"]
    assert main(words) == 128 + signum
    assert ended == ["told", "waited"]
    assert "goes on where it stopped" in capsys.readouterr().err


def test_a_launcher_gets_one_sweep_an_arm(plan, tmp_path):
    commands = launch.sweeps(plan, launch.missing(plan, tmp_path), "joblib")
    assert len(commands) == 2
    assert "seed=0,1" in commands[0] and "hydra/launcher=joblib" in commands[0]
    assert f"hydra.sweep.dir={tmp_path / 'a'}" in commands[0]


@pytest.mark.parametrize("name", known_ablations())
def test_every_ablation_composes(name):
    node = ablation(name)
    plan = Plan(
        name, node["question"], node["arms"], node["baseline"], [0], ["budget=smoke", *node.get("settings", [])]
    )
    progress.check(plan)


@pytest.mark.parametrize(("task", "experiment"), [("listops", "lra/s5-listops"), ("proxy/adding", "proxy/s5-adding")])
def test_a_task_may_name_its_suite(task, experiment):
    assert ablation("layers", task)["arms"]["s5"] == [f"experiment={experiment}"]


def test_a_wrong_arm_is_told_before_anything_runs(plan, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiments=lra/s5-listopz", "budget=smoke"]) == 2
    told = capsys.readouterr().err
    assert "lra/s5-listopz" in told and "lra/s5-listops" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dry"], "--dry-run"),
        (["ablation=mesures"], "Did you mean 'measures'?"),
        (["ablation=trinity", "task=pathx"], "Unknown task"),
        (["experiments="], "baseline"),
        ([], "usage"),
        (["budget=cpu"], "one of ablation=NAME and experiments=NAME"),
        (["measures"], "not key=value"),
        (["experiments=lra/s5-listops", "seeds=x"], "seeds=5 or seeds=0,1,2"),
        (["experiments=lra/s5-listops", "seeds=0"], "1 to 1000"),
        (["experiments=lra/s5-listops", "seeds=1,1"], "different whole numbers"),
        (["experiments=lra/s5-listops", "jobs=0"], "jobs is a number"),
        (["experiments=lra/s5-listops", "threshold=2"], "accuracy in (0, 1]"),
        (["experiments=lra/s5-listops", "budget=nope"], "nope"),
        (["experiments=lra/s5-listops", "mixed=yes"], "mixed is refuse or allow"),
        (["experiments=lra/s5-listops", "retry=1"], "retry is false or true"),
        (["experiments=lra/s5-listops", "seed=3"], "seeds=3, for seed 3"),
        (["experiments=lra/s5-listops", "resume=x"], "go on by themselves"),
        (["experiments=lra/s5-listops", "runs_dir=x"], "results=FOLDER"),
        (["experiments=lra/s5-listops", "hydra.run.dir=x"], "results=FOLDER"),
        (["experiments=lra/s5-listops,lra/s5-listops"], "twice"),
        (["experiments=lra/s5-listops", "model.n_layer=1"], "n_layer"),
        (["report"], "takes folders"),
        (["report", "/nope"], "not a folder"),
        (["report", "."], "no run below"),
    ],
)
def test_mistakes_are_told_in_words(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status = main(words)
    out = capsys.readouterr()
    assert status == (0 if not words else 2)
    assert told in (out.err if words else out.out.lower() + "usage")
    assert not list(tmp_path.iterdir())


def test_seeds():
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("4,7") == [4, 7]


def test_settings_go_to_every_run():
    plan = make_plan(parse(["experiments=lra/s5-listops,lra/s4d-listops", "budget=cpu", "model.n_layers=1", "seeds=2"]))
    assert plan.overrides("lra/s4d-listops", 1) == [
        "experiment=lra/s4d-listops", "budget=cpu", "model.n_layers=1", "seed=1",
    ]  # fmt: skip


def test_a_dry_run_makes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ablation=measures", "budget=cpu", "seeds=2", "--dry-run"]) == 0
    assert "10 of 10 runs to make: about" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_comparison_from_end_to_end(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["experiments=lra/s5-listops,lra/lru-listops", "budget=smoke", "model.n_layers=1", "seeds=2", "results=r"]
    assert main(words) == 0
    first = (tmp_path / "r" / "report.html").read_text()
    # All is there: nothing runs again, and the report from the records alone is the same but for its command.
    assert main(words) == 0
    assert "All 4 runs are there" in capsys.readouterr().out
    assert (tmp_path / "r" / "report.html").read_text() == first
    assert main(["report", "r"]) == 0
    assert (tmp_path / "r" / "report.html").read_text().split("How to repeat")[0] == first.split("How to repeat")[0]

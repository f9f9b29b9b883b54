"""Parts of a package outside this one: found by imports=[...] and by entry points, used from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PARTS = {
    "__init__.py": "",
    "alphas.py": '''
        import numpy as np
        from fractal_ssm import register_alpha

        @register_alpha("geometric")
        def geometric(K, ratio=0.5):
            """alpha_k = 1 - ratio**k, k = 0 .. K-1."""
            return 1 - ratio ** np.arange(K)
    ''',
    "measures.py": '''
        import numpy as np
        from fractal_ssm import hippo, register_measure

        @register_measure("slow-legs")
        def slow_legs(N, factor=0.5):
            """LegS with its time stretched."""
            base = hippo.operator("legs", N)
            return hippo.Operator(name="slow-legs", A=factor * base.A, B=factor * base.B, options={"factor": factor})
    ''',
    "layers.py": '''
        import torch
        from fractal_ssm import register_layer
        from fractal_ssm.models.base import SequenceLayer, valid_mask

        @register_layer("running-mean")
        class RunningMean(SequenceLayer):
            """y_t = scale * mean of u_0 .. u_t."""

            roles = {"scale": "C"}

            def __init__(self, d_model, scale=1.0):
                super().__init__()
                self.d_model = d_model
                self.scale = torch.nn.Parameter(torch.full((d_model,), scale))

            @property
            def causal(self):
                return True

            def forward(self, u, state=None, lengths=None, dt_scale=1.0):
                if lengths is not None:
                    u = u * valid_mask(lengths, u.shape[1])[..., None]
                total, count = (0.0, 0) if state is None else state
                x = total + u.cumsum(1)
                n = count + torch.arange(1, u.shape[1] + 1)[:, None]
                return self.scale * x / n, (x[:, -1:], n[-1])
    ''',
    "data.py": '''
        import numpy as np
        from fractal_ssm import register_dataset
        from fractal_ssm.data.base import SequenceData

        @register_dataset("more-ones")
        class MoreOnes(SequenceData):
            """Are there more 4s than 3s?"""

            n_tokens, n_classes, l_max = 5, 2, 9

            def __init__(self, data_dir, n=40):
                self.n = n

            def prepare(self):
                pass

            def split(self, name):
                x = np.random.default_rng(["train", "val", "test"].index(name)).integers(3, 5, (self.n, 9))
                return [(row, int(row.sum() > 31)) for row in x]

            def describe(self):
                return {"name": "more-ones", "source": "generated", "counts": {"train": self.n}, "checksum": "none"}
    ''',
}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with the package `outside`; nothing of it is inside this repository."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "outside").mkdir()
    for name, text in PARTS.items():
        (folder / "outside" / name).write_text(textwrap.dedent(text))
    return folder


def python(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_imports_from_the_command_line(package, tmp_path):
    """The command of the README, with an alpha initialiser, a measure and a dataset from outside."""
    done = python(
        *("-m", "train", "imports=[outside.alphas,outside.measures,outside.data]"),
        *("model=fractal", "dataset=listops", "budget=smoke", "dataset.name=more-ones", "dataset.n=30"),
        *("model.layer.alpha.name=geometric", "model.layer.alpha.ratio=0.25", "model.layer.n_alphas=2"),
        *("model.layer.d_state=8", "model.d_model=8", "model.n_layers=1", "training.max_epochs=1"),
        *("~budget_for", "hydra.run.dir=run"),
        path=package,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["dataset"] == "more-ones" and record["status"] == "finished"


def test_the_files_of_the_readme_for_a_layer_of_ones_own(package, tmp_path):
    text = (ROOT / "README.md").read_text().replace("my_pkg.ema", "outside.layers").replace("name: ema", NAME)
    # As a reader would: the whole block, comments included, into the file that it names in its first lines.
    for block in re.findall(r"^```yaml\n(.*?)^```", text, flags=re.M | re.S):
        name = re.search(r"^# (my_configs/\S+)", block, flags=re.M)[1]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(block)
    (command,) = re.findall(r"^python (-m train --config-dir my_configs .*)$", text, flags=re.M)
    done = python(*command.split(), "hydra.run.dir=run", path=package, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["layer"] == "running-mean" and record["choices"]["recipe"] == "s5-listops"


NAME = "name: running-mean"
IN_PROCESS = """
import fractal_ssm
from fractal_ssm.registry import layers, alphas, measures, datasets
assert "running-mean" in fractal_ssm.list_layers(), fractal_ssm.list_layers()
assert "geometric" in fractal_ssm.list_alphas()
assert "slow-legs" in fractal_ssm.list_measures()
assert "more-ones" in fractal_ssm.list_datasets()
assert alphas.get("geometric")(3).tolist() == [0, 0.5, 0.75]
print(type(layers.build({"name": "running-mean", "scale": 2.0}, d_model=4)).__name__)
"""


def test_entry_points(package, tmp_path):
    information = tmp_path / "outside-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = {"layers": "layers", "alphas": "alphas", "measures": "measures", "datasets": "data"}
    (information / "entry_points.txt").write_text(
        "".join(f"[fractal_ssm.{kind}]\nall = outside.{module}\n" for kind, module in points.items())
    )
    done = python("-c", IN_PROCESS, path=f"{package}{os.pathsep}{tmp_path}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "RunningMean"


def test_a_name_is_not_found_without_its_import(package, tmp_path):
    done = python("-m", "train", "model=fractal", "model.layer.alpha.name=geometric", path=package, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "Unknown alpha 'geometric'" in done.stderr and "imports=[...]" in done.stderr


@pytest.mark.parametrize("options", [{"alpha": "geometric", "measure": "fractional"}, {"measure": "slow-legs"}])
def test_a_layer_built_from_outside_parts(package, monkeypatch, options):
    from fractal_ssm import Fractal
    from fractal_ssm.registry import import_plugins

    monkeypatch.syspath_prepend(package)
    import_plugins(["outside.alphas", "outside.measures"])
    assert Fractal(d_model=4, d_state=8, n_alphas=2, **options).d_model == 4


def test_a_layer_by_name_alone_drops_what_the_files_gave_another(package, tmp_path):
    done = python(
        *("-m", "train", "imports=[outside.layers]", "experiment=lra/fractal-listops", "budget=smoke"),
        *("model.layer.name=running-mean", "model.layer.scale=2.0", "hydra.run.dir=run"),
        path=package,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Left out, since the layer 'running-mean' has no such option:" in done.stdout
    assert "running-mean: scale=2.0" in done.stdout
    assert "step " in done.stdout and "every setting: config.yaml" in done.stdout

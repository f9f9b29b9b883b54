"""Full disks and damaged files: a good checkpoint can always be resumed, and unusable files give a clear message."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from training_toys import FOLDER, compose_toy

from fractal_ssm import UsageError
from fractal_ssm.errors import RunFailed
from fractal_ssm.train import run
from fractal_ssm.training import record
from fractal_ssm.training.record import Metrics, earlier_parts, read_record, seconds
from fractal_ssm.training.resume import load_checkpoint

OPTIONS = ("training.max_epochs=2",)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        run(compose_toy(*OPTIONS), folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def again(toy_config, folder: Path, name: str = "last.ckpt") -> dict:
    return run(toy_config(*OPTIONS, f"resume={folder}/checkpoints/{name}"), folder)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\0" * 99, '"text"', "[" * 100_000])
def test_a_damaged_record_is_none(tmp_path, content):
    assert read_record(tmp_path) is None
    (tmp_path / "record.json").write_text(content)
    assert read_record(tmp_path) is None and earlier_parts(tmp_path) == []


@pytest.mark.parametrize("content", [None, "{"])
def test_a_damaged_record_blocks_nothing(toy_config, copy, capsys, content):
    path = copy / "record.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    facts = again(toy_config, copy)
    assert facts["status"] == "finished" and facts["earlier"] == []
    assert "record.json is missing or damaged; the earlier parts are not in it." in capsys.readouterr().out


def test_a_record_of_odd_types(tmp_path):
    (tmp_path / "record.json").write_text(json.dumps({"earlier": [1, {}], "fit_seconds": "long", "status": "x"}))
    parts = earlier_parts(tmp_path)
    assert [part["status"] for part in parts] == ["x"]
    assert seconds({"earlier": parts, "fit_seconds": 1.5}) == (1.5, 0)


def test_a_missing_configuration_is_written_again(toy_config, copy):
    before = (copy / "config.yaml").read_text()
    (copy / "config.yaml").unlink()
    again(toy_config, copy)
    assert (copy / "config.yaml").read_text().replace(f"{copy}/checkpoints/last.ckpt", "null") == before


@pytest.mark.parametrize("torn", ["1,16,0.2", "1,16,0.25,val,1.0,0.5,0.0", "\0\xff\n", "a,b\n", "1,2,3,4,5,6,7,8\n"])
def test_torn_lines_are_dropped(finished, tmp_path, torn):
    whole = finished / "metrics.csv"
    path = tmp_path / "metrics.csv"
    path.write_bytes(whole.read_bytes() + torn.encode("latin-1"))
    metrics = Metrics(path)
    assert metrics.dropped == 1 and metrics.rows == Metrics(whole).rows


def test_torn_lines_are_told_and_gone_after_a_resume(toy_config, copy, capsys):
    path = copy / "metrics.csv"
    whole = path.read_bytes()
    path.write_bytes(whole + b"1,16,0.25,val,1.0,0.5,0.0")
    again(toy_config, copy)
    assert "1 unreadable line(s) of" in capsys.readouterr().out
    assert path.read_bytes() == whole


def test_metrics_that_are_gone_or_empty(toy_config, copy):
    for content in (None, b""):
        (copy / "metrics.csv").unlink()
        if content is not None:
            (copy / "metrics.csv").write_bytes(content)
        again(toy_config, copy)
        assert Metrics(copy / "metrics.csv").rows == []


def test_only_rows_of_the_checkpoint_stay(tmp_path):
    """Rows of a validation after the checkpoint are dropped: the process was killed between the two."""
    metrics = Metrics(tmp_path / "metrics.csv")
    for split in ("step", "train", "val"):
        metrics.add(epoch=0, step=8, seconds=0.0, split=split, loss=1.0, accuracy=0.5, lr=0.1)
    metrics.forget_after(8, 1)
    with open(tmp_path / "metrics.csv") as file:
        assert [row["split"] for row in csv.DictReader(file)] == ["step"]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    if how == "flipped":
        part = max(zipfile.ZipFile(path).infolist(), key=lambda part: part.file_size)
        # The last byte of the part; the next part, or the list of parts, begins after it.
        place = content.index(b"PK", part.header_offset + part.file_size) - 50
        path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    elif how == "truncated":
        path.write_bytes(content[:half])
    elif how == "short":
        path.write_bytes(content[:100])
    elif how == "text":
        path.write_text("hello\n" * 10)
    elif how == "foreign":
        torch.save({"state_dict": {}}, path)
    elif how == "parts":
        torch.save({key: value for key, value in load_checkpoint(path).items() if key != "optimizer_states"}, path)
    elif how == "facts":
        stored = load_checkpoint(path)
        torch.save({**stored, "run": {"config": stored["run"]["config"], "world": "x"}}, path)
    elif how == "weights":
        stored = load_checkpoint(path)
        torch.save({**stored, "state_dict": {key: value[..., :1] for key, value in stored["state_dict"].items()}}, path)
    elif how == "loops":
        torch.save({**load_checkpoint(path), "loops": {"fit_loop": 3}}, path)
    elif how == "optimizer":
        torch.save({**load_checkpoint(path), "optimizer_states": [{"state": {}}]}, path)
    elif how in ("no moments", "no schedule"):
        key = "optimizer_states" if how == "no moments" else "lr_schedulers"
        torch.save({**load_checkpoint(path), key: []}, path)
    elif how in ("exp_avg", "exp_avg_sq", "step"):
        stored = load_checkpoint(path)
        stored["optimizer_states"][0]["state"][0][how] = torch.zeros(1, 1, 1, 1)
        torch.save(stored, path)
    elif how == "a moment":
        stored = load_checkpoint(path)
        del stored["optimizer_states"][0]["state"][0]["exp_avg"]
        torch.save(stored, path)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flipped", "the checksum of its part"),
        ("truncated", "cannot be read as a checkpoint"),
        ("short", "cannot be read as a checkpoint"),
        ("text", "cannot be read as a checkpoint"),
        ("foreign", "has no entry 'run'"),
        ("parts", "optimizer_states missing or wrong"),
        ("facts", "run.data, run.world, run.steps missing or wrong"),
        ("weights", "cannot be restored"),
        ("loops", "cannot be restored"),
        ("optimizer", "cannot be restored"),
        ("no moments", "optimizer_states holds 0 states, 1 is needed"),
        ("no schedule", "lr_schedulers holds 0 states, 1 is needed"),
        # Checked before torch: its fused kernel reads and writes beyond a tensor that is too small.
        ("exp_avg", "are missing or of another shape"),
        ("exp_avg_sq", "are missing or of another shape"),
        ("step", "are missing or of another shape"),
        ("a moment", "are missing or of another shape"),
    ],
)
def test_a_damaged_checkpoint_beside_a_good_one(toy_config, copy, how, words):
    last, best = copy / "checkpoints" / "last.ckpt", copy / "checkpoints" / "best.ckpt"
    step = load_checkpoint(best)["global_step"]
    damage(last, how)
    with pytest.raises(UsageError) as caught:
        again(toy_config, copy)
    assert words in str(caught.value)
    assert f"best.ckpt is at step {step} and can be resumed: resume={best}." in str(caught.value)
    if how == "flipped":
        assert again(toy_config, copy, "best.ckpt")["steps"] == 16
    damage(best, "short")
    damage(last, "short")
    with pytest.raises(UsageError, match="A run keeps its own in"):
        load_checkpoint(best.with_name("other.ckpt"))


def test_any_flipped_byte_is_found_or_harmless(finished, tmp_path):
    """200 single bytes: refused with a message or, in the padding of the archive, without effect on the content."""
    content = (finished / "checkpoints" / "best.ckpt").read_bytes()
    good = load_checkpoint(finished / "checkpoints" / "best.ckpt")
    path, draw = tmp_path / "x.ckpt", random.Random(0)
    for _ in range(200):
        place = draw.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
        try:
            stored = load_checkpoint(path)
        except UsageError:
            continue
        assert all(torch.equal(stored["state_dict"][key], value) for key, value in good["state_dict"].items())


def test_a_disk_too_full_for_the_record(toy_config, tmp_path, monkeypatch):
    from fractal_ssm.files import WriteFailed

    def refuse(path, text):
        raise WriteFailed(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(record, "write_text", refuse)
    with pytest.raises(RunFailed, match="could not be written: No space left on device. There is no checkpoint yet."):
        run(toy_config(*OPTIONS), tmp_path)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("last.ckpt", errno.ENOSPC),
        ("best.ckpt", errno.EDQUOT),
        ("metrics.csv", errno.EROFS),
    ],
)
def test_a_full_disk_is_told_in_words(toy_config, tmp_path, monkeypatch, number, name):
    """The disk is full from step 9 on: step 8 is kept, and the record says how the run ended."""
    from fractal_ssm import files
    from fractal_ssm.training.checkpoints import AtomicCheckpointIO

    refused = OSError(number, os.strerror(number))
    original_save, original_row = AtomicCheckpointIO.save_checkpoint, record.append_text

    def save(self, checkpoint, path, storage_options=None):
        if Path(path).name == name and checkpoint["global_step"] > 8:
            with files.atomic_write(path) as file:
                file.write(b"half")
                raise refused
        original_save(self, checkpoint, path)

    def append(path, text):
        if name == "metrics.csv" and ",9," in text:
            raise files.WriteFailed(number, os.strerror(number), str(path))
        original_row(path, text)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    monkeypatch.setattr(record, "append_text", append)
    # With the same accuracy at every validation, best.ckpt would not be written again.
    monkeypatch.setattr("fractal_ssm.training.checkpoints.BestCheckpoint.check_monitor_top_k", lambda *_: True)
    config = toy_config(*OPTIONS, "trainer.log_every_n_steps=1")
    with pytest.raises(RunFailed) as caught:
        run(config, tmp_path)
    message = str(caught.value)
    assert f"{name} could not be written: {os.strerror(number)}." in message
    assert message.count("last.ckpt goes on from") == 1 and "goes on from step 8." in message
    facts = json.loads((tmp_path / "record.json").read_text())
    assert facts["status"] == "failed" and facts["error"] == message
    assert load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8
    assert not list(tmp_path.rglob(".*.tmp"))
    monkeypatch.undo()
    monkeypatch.syspath_prepend(FOLDER)
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    assert run(config, tmp_path)["steps"] == 16


def test_a_disk_that_took_only_the_best_checkpoint(toy_config, tmp_path, monkeypatch):
    from fractal_ssm.files import WriteFailed
    from fractal_ssm.training.checkpoints import AtomicCheckpointIO

    original = AtomicCheckpointIO.save_checkpoint

    def save(self, checkpoint, path, storage_options=None):
        if Path(path).name == "last.ckpt":
            raise WriteFailed(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        original(self, checkpoint, path)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    with pytest.raises(RunFailed, match=r"resume=.*checkpoints/best.ckpt goes on from the best validation so far"):
        run(toy_config(*OPTIONS), tmp_path)

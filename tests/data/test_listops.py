"""ListOps: the recipe's law, its text form, and the dataset's two sources."""

from __future__ import annotations

import pickle
import statistics
from pathlib import Path

import numpy as np
import pytest

from fractal_ssm.data.listops.dataset import FILES, ListOps
from fractal_ssm.data.listops.generator import evaluate, generate
from fractal_ssm.data.listops.symbols import SYMBOLS
from fractal_ssm.data.listops.text import from_text, read_tsv, to_text, write_tsv
from fractal_ssm.errors import UsageError

# MAX of 1, (MIN of 3, 4), 5.
EXAMPLE = np.array([11, 1, 10, 3, 4, 14, 5, 14], dtype=np.uint8)
PRINTED = "( ( ( ( [MAX 1 ) ( ( ( [MIN 3 ) 4 ) ] ) ) 5 ) ] )"
SMALL = {"max_depth": 4, "min_length": 5, "max_length": 40}


def split_trees(trees) -> list[np.ndarray]:
    return np.split(trees.symbols, np.cumsum(trees.lengths)[:-1])


def parse(tokens: list[str], depth: int = 1):
    """(value, length, depth, widest) by recursive descent, independent of the compiled evaluation."""
    token = tokens.pop(0)
    if not token.startswith("["):
        return int(token), 1, depth, 0
    values, length, deepest, widest = [], 2, depth, 0
    while tokens[0] != "X":
        value, size, below, wide = parse(tokens, depth + 1)
        values.append(value)
        length, deepest, widest = length + size, max(deepest, below), max(widest, wide)
    tokens.pop(0)
    rule = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(statistics.median(v)), "[SM": lambda v: sum(v) % 10}
    return rule[token](values), length, deepest, max(widest, len(values))


def test_statistics_of_the_recipe():
    # 6,000 trees of a direct recursive program gave mean 1040 +- 5, median 963, deciles 578 and 1643; label shares
    # 0 and 9: 17 %, the others 7 to 10 %; a kept tree is nearly always as deep as allowed.
    trees = generate(4000, seed=0)
    assert trees.lengths.min() >= 501 and trees.lengths.max() <= 1999
    assert trees.lengths.mean() == pytest.approx(1040, rel=0.025)
    np.testing.assert_allclose(np.quantile(trees.lengths, [0.1, 0.5, 0.9]), [578, 963, 1643], rtol=0.05)
    shares = np.bincount(trees.values, minlength=10) / 4000
    np.testing.assert_allclose(shares[[0, 9]], 0.172, atol=0.02)
    assert shares[1:9].min() > 0.06 and shares[1:9].max() < 0.11
    roots = np.bincount([tree[0] for tree in split_trees(trees)], minlength=14)[10:14] / 4000
    np.testing.assert_allclose(roots, 0.25, atol=0.03)


def test_every_tree_is_one_that_the_recipe_can_draw():
    trees = generate(200, seed=3)
    for symbols, value in zip(split_trees(trees), trees.values, strict=True):
        tokens = [SYMBOLS[code] for code in symbols]
        expected, length, depth, widest = parse(tokens)
        assert not tokens
        assert (expected, length) == (value, len(symbols))
        assert depth <= 10 and 2 <= widest <= 10


def test_raw_trees_follow_the_branching_law():
    # Every length is kept, so the shares are those of the raw law: 3/4 digits at the root; below an operator at
    # depth 2 = max_depth - 1 every argument is a digit.
    trees = generate(10, seed=0, max_depth=1, min_length=1, max_length=1)
    assert sorted(trees.values) == list(range(10))
    trees = generate(3000, seed=0, max_depth=2, max_args=4, min_length=4, max_length=6)
    lengths = np.bincount(trees.lengths)[4:7]
    # 2, 3, 4 arguments are equally likely; deduplication limits only those with two arguments, to 400 trees.
    assert lengths[0] <= 400 and lengths[1] / lengths[2] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 700])
def test_the_number_of_workers_changes_nothing(n):
    one, three = generate(n, 5, **SMALL, workers=1), generate(n, 5, **SMALL, workers=3)
    for left, right in zip(one, three, strict=True):
        np.testing.assert_array_equal(left, right)
    assert len({tree.tobytes() for tree in split_trees(one)}) == n
    longer = generate(n + 10, 5, **SMALL)
    np.testing.assert_array_equal(longer.lengths[:n], one.lengths)


def test_other_seeds_give_other_trees():
    assert not np.array_equal(generate(50, 1, **SMALL).lengths, generate(50, 2, **SMALL).lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_depth": 1, "min_length": 2}, "longest ListOps tree .* has 1 tokens"),
        ({"max_depth": 2, "max_args": 3, "min_length": 500}, "has 5 tokens"),
        ({"max_depth": 1, "min_length": 1}, "Only about 10 distinct"),
        ({"max_depth": 5, "max_args": 10, "min_length": 1999, "max_length": 1999}, "Fewer than 1 in 5,000"),
        ({"min_length": 10, "max_length": 9}, "min_length <= max_length"),
        ({"max_args": 1}, "max_args >= 2"),
        ({"seed": -1}, "seed >= 0"),
    ],
)
def test_settings_that_no_tree_meets_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        generate(**{"n": 100, "seed": 0, **settings})


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        ("5", 5),
        ("[MED 3 4 X", 3),
        ("[MED 9 1 4 X", 4),
        ("[MED 1 2 3 9 X", 2),
        ("[SM 9 9 4 X", 2),
        ("[MIN [MAX 1 7 X 8 X", 7),
    ],
)
def test_values(tokens, value):
    assert evaluate(from_text(tokens.encode())) == value


@pytest.mark.parametrize("tokens", ["[MAX 1 2", "1 2", "X", "[MAX X", "[MAX 1 X 2", "[MAX 1 X X"])
def test_broken_trees_have_no_value(tokens):
    with pytest.raises(UsageError, match="not one complete"):
        evaluate(np.array([SYMBOLS.index(token) for token in tokens.split()], dtype=np.uint8))


def test_printed_form():
    assert to_text(EXAMPLE) == PRINTED
    np.testing.assert_array_equal(from_text(PRINTED.encode()), EXAMPLE)
    assert " ".join(SYMBOLS[code] for code in EXAMPLE) == "[MAX 1 [MIN 3 4 X 5 X"
    assert to_text(np.array([7])) == "7"


def test_tsv_round_trip_in_the_layout_of_the_release(tmp_path):
    trees = generate(30, 0, **SMALL)
    pairs = list(zip(split_trees(trees), trees.values, strict=True))
    write_tsv(tmp_path / "a.tsv", pairs)
    lines = (tmp_path / "a.tsv").read_bytes().split(b"\r\n")
    assert lines[0] == b"Source\tTarget" and lines[-1] == b"" and len(lines) == 32
    for (symbols, value), (read, read_value) in zip(pairs, read_tsv(tmp_path / "a.tsv"), strict=True):
        np.testing.assert_array_equal(symbols, read)
        assert value == read_value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Source Target\n", "header"),
        (b"Source\tTarget\r\n( ( ( [MAX 1 ) 2", "line 2: .*cut short"),
        (b"Source\tTarget\r\n5\t5\r\n( ( [MAX 1 )\t1\r\n", "line 3: .*not one complete"),
        (b"Source\tTarget\r\n" + PRINTED.encode() + b"\t4\r\n", "the target is 4, but the tree has the value 5"),
        (b"Source\tTarget\r\n( [AVG 1 )\t1\r\n", r"\[AVG' is not a ListOps token"),
    ],
)
def test_damaged_files_are_refused_with_their_line(tmp_path, content, message):
    (tmp_path / "bad.tsv").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        list(read_tsv(tmp_path / "bad.tsv"))


def release(folder: Path, n: int = 8) -> Path:
    """A miniature of the release's folder."""
    folder.mkdir(parents=True)
    trees = generate(3 * n, 1, **SMALL)
    pairs = list(zip(split_trees(trees), trees.values, strict=True))
    for index, name in enumerate(FILES.values()):
        write_tsv(folder / name, pairs[index * n : (index + 1) * n])
    return folder


COUNTS = {"n_train": 8, "n_val": 8, "n_test": 8}


def test_generated_dataset(tmp_path):
    data = ListOps(tmp_path, n_train=30, n_val=5, n_test=6)
    data.prepare()
    assert [len(data.split(name)) for name in ("train", "val", "test")] == [30, 5, 6]
    assert (data.n_tokens, data.n_classes, data.l_max) == (18, 10, 2048)
    ids, label = data.split("train")[0]
    assert ids[-1] == 2 and 502 <= len(ids) <= 2000 and 0 <= label <= 9 and ids.min() >= 2 and ids.max() <= 17
    batch = data.collate([data.split("train")[index] for index in range(3)])
    assert batch.inputs.shape == (3, int(batch.lengths.max()))
    for row, length in zip(batch.inputs, batch.lengths.tolist(), strict=True):
        assert row[length - 1] == 2 and not row[length:].any() and row[:length].min() >= 2
    facts = data.describe()
    assert facts["source"] == "generated" and facts["lra"] is False and facts["counts"]["val"] == 5
    assert sum(facts["label_shares"]["test"]) == pytest.approx(1.0)


def test_vocabulary_is_ordered_by_frequency_over_train(tmp_path):
    data = ListOps(tmp_path, n_train=400, n_val=1, n_test=1)
    data.prepare()
    tokens = data.cache.facts["vocabulary"]
    assert tokens[:3] == ["<pad>", "<unk>", "<eos>"] and sorted(tokens[3:]) == sorted(SYMBOLS)
    counts = np.zeros(18, dtype=int)
    for index in range(400):
        counts += np.bincount(data.split("train")[index][0], minlength=18)
    assert all(np.diff(counts[3:]) <= 0) and counts[:2].sum() == 0 and counts[2] == 400


def test_test_samples_do_not_depend_on_the_size_of_train(tmp_path):
    small, large = ListOps(tmp_path, n_train=5, n_val=3, n_test=4), ListOps(tmp_path, n_train=9, n_val=3, n_test=4)
    symbols = []
    for data in (small, large):
        data.prepare()
        names = data.cache.facts["vocabulary"]
        samples = [data.split("test")[i] for i in range(4)] + [data.split("train")[i] for i in range(5)]
        symbols.append([([names[i] for i in ids], label) for ids, label in samples])
    assert symbols[0] == symbols[1]


def test_truncation_keeps_room_for_eos(tmp_path):
    data = ListOps(tmp_path, n_train=4, n_val=1, n_test=1, l_max=100)
    data.prepare()
    ids, _ = data.split("train")[0]
    assert len(ids) == 100 and ids[-1] == 2 and 2 not in ids[:-1]


@pytest.mark.parametrize(
    "place",
    [
        "listops-1000",
        "listops",
        "lra_release/listops-1000",
        "lra_release/lra_release/listops-1000",
        "raw_datasets/lra_release/lra_release/listops-1000",
        "renamed_by_the_user",
        "lra_release/lra_release/renamed",
    ],
)
def test_release_is_found_in_every_layout(tmp_path, place):
    folder = release(tmp_path / place)
    data = ListOps(tmp_path, **COUNTS)
    data.prepare()
    assert data.describe()["source"] == "release" and data.describe()["path"] == str(folder)
    names = data.cache.facts["vocabulary"]
    symbols, value = next(iter(read_tsv(folder / FILES["val"])))
    ids, label = data.split("val")[0]
    assert [names[i] for i in ids] == [SYMBOLS[code] for code in symbols] + ["<eos>"] and label == value


def test_the_inner_archive_folder_wins(tmp_path):
    release(tmp_path / "lra_release/listops-1000")
    inner = release(tmp_path / "lra_release/lra_release/listops-1000")
    data = ListOps(tmp_path, **COUNTS)
    data.prepare()
    assert data.describe()["path"] == str(inner)


def test_data_dir_may_be_the_folder_itself(tmp_path):
    folder = release(tmp_path / "anything")
    data = ListOps(folder, source="release", **COUNTS)
    data.prepare()
    assert data.describe()["source"] == "release"


def test_a_file_with_too_few_rows_is_not_taken_silently(tmp_path):
    release(tmp_path / "listops-1000")
    with pytest.raises(UsageError, match=r"holds 8 trees, 96,000 were asked for.*dataset.n_train=8"):
        ListOps(tmp_path).prepare()
    assert not [path for path in (tmp_path / "cache" / "listops").iterdir() if path.is_dir()]


def test_missing_release_shows_the_tree(tmp_path):
    (tmp_path / "listops-1000").mkdir()
    (tmp_path / "listops-1000" / FILES["train"]).touch()
    with pytest.raises(UsageError) as error:
        ListOps(tmp_path, source="release").prepare()
    for part in ("basic_val.tsv", "660 MB", str(tmp_path), "source=auto", "lacks basic_val.tsv, basic_test.tsv"):
        assert part in str(error.value)


def test_wrong_options():
    with pytest.raises(UsageError, match="Did you mean 'generated'"):
        ListOps(Path("x"), source="generate")
    with pytest.raises(UsageError, match="max_depth belongs to generated trees"):
        ListOps(Path("x"), source="release", max_depth=5)
    with pytest.raises(UsageError, match="n_train"):
        ListOps(Path("x"), n_train=0)
    with pytest.raises(UsageError, match="l_max"):
        ListOps(Path("x"), l_max=1)
    with pytest.raises(UsageError, match="prepare"):
        ListOps(Path("x")).split("train")


def test_only_the_whole_set_by_the_recipe_is_the_benchmark():
    assert ListOps(Path("x"))._is_benchmark() and ListOps(Path("x"), seed=3)._is_benchmark()
    assert not ListOps(Path("x"), n_train=9_600)._is_benchmark()
    assert not ListOps(Path("x"), max_depth=9)._is_benchmark()


def test_changed_recipe_is_generated_and_not_the_benchmark(tmp_path):
    release(tmp_path / "listops-1000")
    data = ListOps(tmp_path, **COUNTS, **SMALL)
    data.prepare()
    assert data.describe()["source"] == "generated" and data.describe()["lra"] is False


def test_splits_travel_to_workers_as_a_path(tmp_path):
    data = ListOps(tmp_path, n_train=200, n_val=1, n_test=1)
    data.prepare()
    split = data.split("train")
    packed = pickle.dumps(split)
    assert len(packed) < 4_000
    np.testing.assert_array_equal(pickle.loads(packed)[7][0], split[7][0])


@pytest.mark.slow
def test_full_size_is_fast(tmp_path):
    import time

    start = time.perf_counter()
    trees = generate(100_000, seed=0)
    assert time.perf_counter() - start < 90
    assert len({tree.tobytes() for tree in split_trees(trees)}) == 100_000


@pytest.mark.parametrize("place", ["listops", "lra/listops", "raw_datasets/lra/listops"])
def test_the_form_of_the_mega_repository(tmp_path, place):
    folder = release(tmp_path / "tsv" / "r")
    (tmp_path / place / "input").mkdir(parents=True)
    (tmp_path / place / "label").mkdir()
    for split, stem in (("train", "train"), ("val", "valid"), ("test", "test")):
        rows = list(read_tsv(folder / FILES[split]))
        (tmp_path / place / f"input/{stem}.src").write_text("".join(to_text(symbols) + "\n" for symbols, _ in rows))
        (tmp_path / place / f"label/{stem}.label").write_text("".join(f"{value}\n" for _, value in rows))
    data, same = ListOps(tmp_path, **COUNTS), ListOps(tmp_path / "tsv", **COUNTS)
    for each in (data, same):
        each.prepare()
    assert (data.describe()["source"], same.describe()["source"]) == ("mega", "release")
    assert data.cache.checksum == same.cache.checksum
    label = tmp_path / place / "label/valid.label"
    label.write_text(label.read_text() + "3\n")
    with pytest.raises(UsageError, match="has more lines"):
        ListOps(tmp_path, source="mega", **{**COUNTS, "n_val": 9}).prepare()


def test_files_of_the_mega_repository_are_told_apart_by_folder_only(tmp_path):
    for name in ("input/train.src", "input/valid.src", "input/test.src", "label/train.label", "label/valid.label"):
        path = tmp_path / "imdb-4000" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "imdb-4000" / "label/test.label").touch()
    assert ListOps.found(tmp_path) == []
    with pytest.raises(UsageError, match="lra.zip"):
        ListOps(tmp_path, source="mega").prepare()

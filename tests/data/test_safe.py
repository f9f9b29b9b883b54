"""Crafted pickles and archives are refused, and their intended damage does not happen."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fractal_ssm.data.pickles import load_pickle
from fractal_ssm.data.safe import extract_tar, read_gzip
from fractal_ssm.errors import UsageError

MARK = "made_by_malice"


class RunsCode:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def write(path: Path, value, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_and_plain_values_come_back(tmp_path, protocol):
    value = {
        b"data": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        b"big-endian": np.arange(3, dtype=">i4"),
        b"fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        b"labels": [1, 2, 3],
        b"name": b"batch 1",
    }
    read = load_pickle(write(tmp_path / "p", value, protocol))
    for key in (b"data", b"big-endian", b"fortran"):
        np.testing.assert_array_equal(read[key], value[key])
        assert read[key].flags.writeable
    assert read[b"labels"] == [1, 2, 3] and read[b"name"] == b"batch 1"


def python2_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote CIFAR-10: protocol 2, byte strings, the old module name of numpy."""
    raw = data.tobytes()
    state = b"(I1\n(" + b"".join(b"I%d\n" % n for n in data.shape) + b"t"
    state += b"cnumpy\ndtype\n(U\x02u1I0\nI1\ntR(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\n"
    state += b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR" + state
    numbers = b"](" + b"".join(b"I%d\n" % label for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def test_a_pickle_of_python_2(tmp_path):
    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    (tmp_path / "p").write_bytes(python2_batch(data, [1, 2, 3]))
    read = load_pickle(tmp_path / "p")
    np.testing.assert_array_equal(read[b"data"], data)
    assert read[b"labels"] == [1, 2, 3]


@pytest.mark.parametrize(
    "attack",
    [
        RunsCode(os.system, f"touch {MARK}"),
        RunsCode(eval, f"open('{MARK}', 'w')"),
        RunsCode(Path.touch, Path(MARK)),
        RunsCode(getattr, "text", "join"),
        RunsCode(np.ndarray, (10**12,)),
    ],
    ids=["os.system", "eval", "pathlib", "getattr", "huge array"],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, attack, protocol):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"Refused|not a whole pickle"):
        load_pickle(write(tmp_path / "p", {b"data": attack}, protocol))
    assert not (tmp_path / MARK).exists()


def test_the_attack_of_this_test_works_on_an_ordinary_unpickler(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(write(tmp_path / "p", RunsCode(os.system, f"touch {MARK}")).read_bytes())
    assert (tmp_path / MARK).exists()


def test_arrays_of_objects_are_refused(tmp_path):
    with pytest.raises(UsageError, match="type 'O"):
        load_pickle(write(tmp_path / "p", np.array([{}, None], dtype=object)))


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_pickle_cut_short_is_refused(tmp_path, keep):
    content = pickle.dumps({b"data": np.arange(1000)}, protocol=2)
    (tmp_path / "p").write_bytes(content[:keep])
    with pytest.raises(UsageError, match="not a whole pickle"):
        load_pickle(tmp_path / "p")


def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path):
    content = python2_batch(np.zeros((2, 2), dtype=np.uint8), [0]).replace(b"I2\nI2\n", b"I9\nI99999999\n")
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(UsageError, match="not a whole pickle"):
        load_pickle(tmp_path / "p")


def test_large_pickles_are_not_opened(tmp_path):
    (tmp_path / "p").write_bytes(bytes(2000))
    with pytest.raises(UsageError, match="more than 1,000 bytes"):
        load_pickle(tmp_path / "p", max_bytes=1000)


BOMBS = {
    "shared lists": b"\x80\x02" + b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(22)) + b".",
    "duplicates": b"]" + b"2" * 1000 + b".",
    "huge memo index": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "long integer": b"\x80\x02\x8b\x00\x00\x00\x40\x01.",
    "decimal digits": b"I" + b"9" * 5000 + b"\n.",
    "claims 8 EB": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f" + b"x.",
    "marks": b"(" * 100_001 + b".",
    "tuple as a key": b"\x80\x02})q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)) + b"Ns.",
    "nested lists": b"]" * 40_000 + b"a" * 39_999 + b".",
    "set": b"\x80\x04\x8f.",
    "changes a function": b"cnumpy\ndtype\n}U\x01aI1\nsb.",
    "list within itself": b"]q\x00h\x00a.",
    "long key again and again": b"\x80\x02}X\x40\x42\x0f\x00"
    + b"k" * 1_000_000
    + b"q\x00Ns"
    + b"h\x00Ns" * 30_000
    + b".",
    "integer as a key": b"\x80\x02}I1" + b"0" * 1000 + b"\nNs.",
    "one text encoded again and again": b"\x80\x02]X\x40\x42\x0f\x00"
    + b"k" * 1_000_000
    + b"q\x00"
    + b"c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02"
    + b"h\x01h\x00h\x02\x86R" * 5_000
    + b"l.",
    "long arguments again and again": b"cnumpy\ndtype\nq\x00("
    + b"N" * 100_000
    + b"tq\x01"
    + b"h\x00h\x01R" * 5_000
    + b".",
    "shared tuples as a byte order": b"\x80\x02)q\x00"
    + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    + b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85RK\x03h\x3c\x86b.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"Pid\n.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_pickles_that_grow_are_bounded(tmp_path, monkeypatch, bomb):
    # Of a million: the trace of the memory makes each of them slow.
    monkeypatch.setattr("fractal_ssm.data.pickles._Opcodes.left", 100_000)
    (tmp_path / "p").write_bytes(BOMBS[bomb])
    tracemalloc.start()
    begun = time.process_time()
    try:
        load_pickle(tmp_path / "p")
    except UsageError as error:
        assert str(tmp_path) in str(error) and "download" in str(error) and len(str(error)) < 500
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Bounds for linear cost: hundreds of times the usual cost, and far below that of the bombs in an unpickler.
    assert peak < 300 << 20 and time.process_time() - begun < 60


def test_numpy_is_the_same_after_a_pickle_that_sets_byte_orders(tmp_path):
    state = b"(K\x03U\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    (tmp_path / "p").write_bytes(b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00u2\x85R" + state + b"b.")
    assert load_pickle(tmp_path / "p") == np.dtype(">u2") and np.dtype("u2").isnative


def test_a_batch_of_the_true_shape_is_read_at_once(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, (10_000, 3072), dtype=np.uint8)
    batch = {b"batch_label": b"training batch 1 of 5", b"labels": [3] * 10_000, b"data": data}
    batch[b"filenames"] = [b"%05d_s.png" % index for index in range(10_000)]
    for content in (pickle.dumps(batch, protocol=2), python2_batch(data, [3] * 10_000)):
        (tmp_path / "p").write_bytes(content)
        begun = time.process_time()
        read = load_pickle(tmp_path / "p")
        # It takes about 0.3 s; the bound must only separate linear from quadratic time on any machine.
        assert time.process_time() - begun < 10
        assert np.array_equal(read[b"data"], data) and read[b"labels"] == [3] * 10_000


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_good_archive(tmp_path, mode):
    files = [(tarfile.TarInfo("a/b.txt"), b"one"), (tarfile.TarInfo("a/c/d.bin"), bytes(5000))]
    archive = tar(tmp_path / "lra_release.gz", files, mode)
    target = extract_tar(archive, tmp_path / "out" / "lra")
    assert (target / "a/b.txt").read_bytes() == b"one" and (target / "a/c/d.bin").stat().st_size == 5000
    with pytest.raises(UsageError, match="there already"):
        extract_tar(archive, target)


EVIL = {
    "parent": (tarfile.TarInfo(f"../{MARK}"), "outside its folder"),
    "deep parent": (tarfile.TarInfo(f"a/../../{MARK}"), "outside its folder"),
    "absolute": (tarfile.TarInfo(f"/tmp/{MARK}"), "outside its folder"),
    "symbolic link": (link("a", "..", tarfile.SYMTYPE), "a link or a device"),
    "hard link": (link("a", "/etc/passwd", tarfile.LNKTYPE), "a link or a device"),
    "device": (link("a", "", tarfile.CHRTYPE), "a link or a device"),
    "pipe": (link("a", "", tarfile.FIFOTYPE), "a link or a device"),
}


@pytest.mark.parametrize("case", EVIL)
def test_archives_that_reach_out_are_refused(tmp_path, case):
    member, message = EVIL[case]
    archive = tar(tmp_path / "x.tar.gz", [(tarfile.TarInfo("fine.txt"), b"1"), (member, b"")])
    with pytest.raises(UsageError, match=message):
        extract_tar(archive, tmp_path / "room" / "out")
    assert list((tmp_path / "room").iterdir()) == [] and not (tmp_path / MARK).exists()


def test_bombs_are_stopped(tmp_path):
    bomb = tar(tmp_path / "bomb.tar.gz", [(tarfile.TarInfo("zeros"), bytes(50 << 20))])
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(UsageError, match="more than 1,048,576 bytes"):
        extract_tar(bomb, tmp_path / "out", max_bytes=1 << 20)
    many = tar(tmp_path / "many.tar.gz", [(tarfile.TarInfo(f"f{n}"), b"") for n in range(50)])
    with pytest.raises(UsageError, match="more than 10 files"):
        extract_tar(many, tmp_path / "out", max_files=10)
    assert not (tmp_path / "out").exists()


def pax(records: dict[str, str], size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo("grows")
    member.pax_headers = records
    return member


def nested(depth: int) -> list[tarfile.TarInfo]:
    return [tarfile.TarInfo("/".join("a" * depth) + "/f")]


CRAFTED = {
    "sparse": ([pax({"GNU.sparse.map": "0,1", "GNU.sparse.size": "300000000"})], "sparse"),
    "sparse 1.0": ([pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "300000000"})], "."),
    "old sparse": ([link("a", "", tarfile.GNUTYPE_SPARSE)], "a link or a device"),
    "contiguous": ([link("a", "", tarfile.CONTTYPE)], "a link or a device"),
    "claims more": ([pax({"size": "300000000"})], "more than 1,048,576 bytes"),
    "long header": ([pax({"comment": "x" * (2 << 20)})], "header of"),
    "deep": (nested(1500), "more than 32 levels deep"),
    "twice": ([tarfile.TarInfo("a"), tarfile.TarInfo("a")], "twice"),
    "twice by a dot": ([tarfile.TarInfo("a"), tarfile.TarInfo("./a")], "twice"),
    "file as a folder": ([tarfile.TarInfo("a"), tarfile.TarInfo("a/b")], "cannot be unpacked"),
    "long name": ([tarfile.TarInfo("x" * 300)], "cannot be unpacked"),
    "nul": ([pax({"path": "a\0b"})], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_archives_are_refused(tmp_path, case):
    members, message = CRAFTED[case]
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            archive.addfile(member)
    with pytest.raises(UsageError, match=message):
        extract_tar(tmp_path / "x.tar", tmp_path / "room" / "out", max_bytes=1 << 20)
    assert not list(tmp_path.glob("room/*")) and not list(tmp_path.glob("room/.*"))


def test_damaged_archives_are_refused(tmp_path):
    archive = tar(tmp_path / "x.tar.gz", [(tarfile.TarInfo("noise"), os.urandom(100_000))])
    content = archive.read_bytes()
    (tmp_path / "cut.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "noise.gz").write_bytes(os.urandom(2000))
    for name in ("cut.gz", "noise.gz"):
        with pytest.raises(UsageError, match="cannot be unpacked"):
            extract_tar(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gzip_is_bounded(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(100_000)))
    assert len(read_gzip(tmp_path / "x.gz", 100_000)) == 100_000
    with pytest.raises(UsageError, match="more than 99,999"):
        read_gzip(tmp_path / "x.gz", 99_999)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(1000))[:500])
    with pytest.raises(UsageError, match="damaged"):
        read_gzip(tmp_path / "cut.gz", 10_000)

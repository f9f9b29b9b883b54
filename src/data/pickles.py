"""Read untrusted pickles of numbers, texts, containers and numeric numpy arrays, in bounded time and memory.

The standard library's pure-Python unpickler is restricted to the opcodes that data need, and names in the file are
looked up in a fixed table: nothing is imported. The compiled unpickler cannot be bounded: a key of shared tuples takes
exponential time to hash, and one opcode makes it allocate a table of gigabytes. `pickle._Unpickler` is private:
`tests/data/test_safe.py` fails on a version of Python that has changed it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError

_MAX_OPCODES = 1_000_000
_MAX_KEY = 256
_NUMERIC = frozenset("?bBhHiIlLqQefd") | {f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8)} - {"f1"}
_ALLOWED = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES "
    "BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD"
).split()


def load_pickle(path: Path, max_bytes: int = 64 << 20) -> Any:
    """Read a pickle that holds only numbers, texts, lists, tuples, dicts and numeric numpy arrays.

    Byte strings of Python 2 stay bytes. Objects that a pickle shares are shared in the result. Keys are texts or bytes
    of at most 256 characters.

    Args:
        path: the file.
        max_bytes: largest file that is opened. Memory is a few times that, time is linear in the size of the file.
    Raises:
        UsageError: the file is too large, is cut short, calls anything else, or has more than a million opcodes.
    """
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UsageError(f"{path} has more than {max_bytes:,} bytes, so it is not the expected file.")
    try:
        if not content.endswith(pickle.STOP):
            raise EOFError("it has no end")
        return _Unpickler(content, 4 * max_bytes).load()
    except UsageError as error:
        raise UsageError(f"{path}: {error} Copy or download the file again from its publisher.") from None
    except Exception as error:
        # Damaged pickles fail in many ways; all of them mean the same to the user.
        reason = str(error)[:200]
        raise UsageError(f"{path} is not a whole pickle ({reason}): copy or download it again.") from error


class _Opcodes(dict):
    """Opcode -> method for the opcodes that data need; limits the number of look-ups."""

    left = _MAX_OPCODES

    def __getitem__(self, opcode: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise UsageError(f"it has more than {_MAX_OPCODES:,} opcodes, so it is not the expected file.")
        if opcode not in self:
            known = pickletools.code2op.get(chr(opcode))
            if known is None:
                raise ValueError(f"no opcode {opcode}")
            raise UsageError(f"it uses the opcode {known.name}. Refused: data need no such thing, it may be malicious.")
        return super().__getitem__(opcode)


class _Unpickler(pickle._Unpickler):
    """Unpickler that checks what the library's takes on trust; its cost is bounded by the bytes read."""

    def __init__(self, content: bytes, max_made: int):
        super().__init__(io.BytesIO(content), encoding="bytes")
        opcodes = [getattr(pickle, name)[0] for name in _ALLOWED]
        self.dispatch = _Opcodes((opcode, pickle._Unpickler.dispatch[opcode]) for opcode in opcodes)
        for name in ("REDUCE", "BUILD", "SETITEM", "SETITEMS", "DICT"):
            self.dispatch[getattr(pickle, name)[0]] = getattr(_Unpickler, f"load_{name.lower()}")
        self.left = max_made

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "numpy.core.multiarray _reconstruct": lambda *_: np.empty(0, dtype=np.uint8),
            "numpy._core.multiarray _reconstruct": lambda *_: np.empty(0, dtype=np.uint8),
            "numpy dtype": _dtype,
            # Only ever an argument of _reconstruct.
            "numpy ndarray": None,
            "_codecs encode": self._encode,
        }
        called = f"{module[:80]} {name[:80]}"
        if called not in known:
            raise UsageError(f"it wants to call {called!r}. Refused: data need no code, it may be malicious.")
        return known[called]

    def load_reduce(self) -> None:
        if type(self.stack[-1]) is not tuple or len(self.stack[-1]) > 4:
            raise ValueError("it calls with other arguments than arrays need")
        super().load_reduce()

    def load_build(self) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if isinstance(value, np.dtype):
            order = next((order for order in "<>" if state[1] == order or state[1] == order.encode()), "|")
            # Restore the byte order only: the rest of the state could turn a number into a record or an object.
            value.__setstate__((3, order, None, None, None, -1, -1, 0))
        elif isinstance(value, np.ndarray):
            _, shape, dtype, fortran, data = state
            if not isinstance(dtype, np.dtype) or type(data) is not bytes:
                raise UsageError("it holds an array of objects; only numbers are read.")
            if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
                raise ValueError("an array without a shape")
            self._make(len(data))
            value.__setstate__((1, shape, dtype, fortran == 1, data))
        else:
            raise UsageError("it wants to change an object that is not an array. Refused: it may be malicious.")

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._check_keys({}, self.stack[::2])
        super().load_dict()

    def _check_keys(self, target: Any, keys: list[Any]) -> None:
        # Hashing a tuple of shared tuples takes exponential time, and the hash of a long integer is never cached.
        odd = [type(key).__name__ for key in keys if type(key) not in (str, bytes) or len(key) > _MAX_KEY]
        if odd:
            raise UsageError(f"it has a key of type {odd[0]} or a long key; only short texts and bytes are read.")
        if type(target) is not dict:
            raise ValueError("it sets keys of something that is not a dictionary")

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Bytes of a latin-1 text, the form in which numpy writes bytes in old protocols."""
        if type(text) is not str or encoding not in ("latin1", b"latin1"):
            raise UsageError("it encodes text in an unexpected way.")
        self._make(len(text))
        return text.encode("latin-1")

    def _make(self, n_bytes: int) -> None:
        """Count new bytes against a limit: a few opcodes can make the same text or array again and again."""
        self.left -= n_bytes
        if self.left < 0:
            raise UsageError("it unpacks to many times its size. Refused: it may be malicious.")


def _dtype(code: Any, *_: Any) -> np.dtype:
    code = code.decode("latin-1") if type(code) is bytes and len(code) < 3 else code
    if type(code) is not str or code not in _NUMERIC:
        shown = repr(code[:80]) if type(code) is str else type(code).__name__
        raise UsageError(f"it holds an array of type {shown}; only numbers are read.")
    # A copy: setting its byte order must not change numpy's own.
    return np.dtype(code, copy=True)

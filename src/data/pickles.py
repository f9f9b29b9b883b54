"""Reading pickles of strangers: numbers, texts, containers and numeric numpy arrays, in bounded time and memory.

`pickle.Unpickler` cannot be bounded: a key of shared tuples takes exponential time to hash, one opcode makes it
allocate a table of gigabytes, and BUILD changes whatever it may name. `pickletools.genops` reads the opcodes, and this
module carries out those that data need; every other opcode is refused, and nothing a pickle names is imported.
"""

from __future__ import annotations

import io
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError

_MAX_OPCODES = 1_000_000
_NUMERIC = frozenset("?bBhHiIlLqQefd") | {f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8)} - {"f1"}
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy._core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy", "dtype"): "dtype",
    # Only ever an argument of _reconstruct.
    ("numpy", "ndarray"): "ndarray",
    ("_codecs", "encode"): "encode",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
_BYTES_OF_PYTHON_2 = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def load_pickle(path: Path, max_bytes: int = 64 << 20) -> Any:
    """Read a pickle that holds only numbers, texts, lists, tuples, dicts and numeric numpy arrays.

    Byte strings of Python 2 stay bytes. References that a pickle shares are shared in the result. Keys are texts, bytes
    or integers.

    Args:
        path: the file.
        max_bytes: largest file that is opened. Memory is a few times the file, time is linear in its size.
    Raises:
        UsageError: the file is too large, is cut short, names anything else to call, or has more than a million
            opcodes.
    """
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UsageError(f"{path} has more than {max_bytes:,} bytes, the most that is expected: this is another file.")
    try:
        return _Machine().run(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error} Copy or download the file again from its publisher.") from None
    except Exception as error:
        # Damaged pickles fail in many ways; all of them mean the same to the user.
        reason = str(error)[:200]
        raise UsageError(f"{path} is not a whole pickle ({reason}): copy or download it again.") from error


class _Name:
    """One of the functions and classes of numpy that a pickle may name."""

    def __init__(self, kind: str):
        self.kind = kind


class _Dtype:
    """A numpy.dtype under construction."""

    def __init__(self, code: Any, *flags: Any):
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in _NUMERIC:
            raise UsageError(f"it holds an array of type {_short(code)}; only numbers are read.")
        self.dtype = np.dtype(code)

    def build(self, state: Any) -> _Dtype:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder(order if order in ("<", ">") else "=")
        return self


class _Array:
    """A numpy.ndarray under construction."""

    array: np.ndarray | None = None

    def build(self, state: Any) -> np.ndarray:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise UsageError("it holds an array of objects; only numbers are read.")
        flat = np.frombuffer(data, dtype=dtype.dtype)
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise UsageError(f"it holds an array of shape {_short(shape)}.")
        self.array = flat.reshape(shape, order="F" if fortran else "C").copy()
        return self.array


class _Machine:
    """A stack and a memo, as the format defines them."""

    def __init__(self):
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(content)), start=1):
            if count > _MAX_OPCODES:
                raise UsageError(f"it has more than {_MAX_OPCODES:,} opcodes: this is another file.")
            if opcode.name == "STOP":
                (value,) = self.stack
                return value
            self.step(opcode.name, argument)
        raise EOFError("it has no end")

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _BYTES_OF_PYTHON_2:
            self.stack.append(argument.encode("latin-1"))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _SHORT_TUPLES:
            size = _SHORT_TUPLES[name]
            self.stack.append(tuple([self.pop() for _ in range(size)][::-1]))
        elif name in ("PROTO", "FRAME"):
            pass
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.top()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            value = self.memo[argument]
            self.stack.append(value.array if isinstance(value, _Array) and value.array is not None else value)
        else:
            action = getattr(self, f"do_{name.lower()}", None)
            if action is None:
                raise UsageError(f"it uses the opcode {name}. Refused: data need no such thing, it may be malicious.")
            action(argument)

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("an operand is missing")
        return self.stack[-1]

    def pop(self) -> Any:
        self.top()
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def do_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.pop_to_mark()))

    def do_list(self, _: Any) -> None:
        self.stack.append(self.pop_to_mark())

    def do_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def do_append(self, _: Any) -> None:
        self.extend([self.pop()])

    def do_appends(self, _: Any) -> None:
        self.extend(self.pop_to_mark())

    def extend(self, items: list[Any]) -> None:
        if type(self.top()) is not list:
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(items)

    def do_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def do_dict(self, _: Any) -> None:
        items = self.pop_to_mark()
        self.stack.append({})
        self.update(items)

    def do_setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.update([key, value])

    def do_setitems(self, _: Any) -> None:
        self.update(self.pop_to_mark())

    def update(self, items: list[Any]) -> None:
        if type(self.top()) is not dict:
            raise ValueError("it sets keys of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of a tuple of shared tuples takes exponential time.
            if type(key) not in (str, bytes, int):
                raise UsageError(f"it has a key of type {type(key).__name__}; texts, bytes and integers are read.")
            self.stack[-1][key] = value

    def do_global(self, argument: str) -> None:
        self.name(*argument.split(" ", 1))

    def do_stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def name(self, module: Any, name: Any) -> None:
        if not (type(module) is type(name) is str and (module, name) in _NAMES):
            raise UsageError(
                f"it wants to call {_short(module)} {_short(name)}. Refused: data need no code, it may be malicious."
            )
        self.stack.append(_Name(_NAMES[module, name]))

    def do_reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        kind = function.kind if isinstance(function, _Name) else None
        if kind == "reconstruct":
            self.stack.append(_Array())
        elif kind == "dtype":
            self.stack.append(_Dtype(*arguments))
        elif kind == "encode":
            # How numpy writes bytes in old protocols: as latin-1 text.
            text, encoding = arguments
            if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
                raise UsageError("it encodes text in an unexpected way.")
            self.stack.append(text.encode("latin-1"))
        else:
            raise UsageError("it wants to call something that is no function. Refused: it may be malicious.")

    def do_build(self, _: Any) -> None:
        state, value = self.pop(), self.pop()
        if not isinstance(value, _Dtype | _Array):
            raise UsageError("it wants to change something that is no array. Refused: it may be malicious.")
        self.stack.append(value.build(state))


def _short(value: Any) -> str:
    """A name out of a pickle, for a message: shared references would make its full text exponentially long."""
    return repr(value[:80]) if isinstance(value, str) else type(value).__name__

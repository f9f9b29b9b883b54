"""Compile the Vandermonde and Cauchy kernels ahead of time, without a GPU, and print what each costs as JSON lines.

    python compile_sums.py cuda:80 cuda:90 hip:gfx942

Run as a process of its own: the interpreter's switch must be off when triton is imported.
"""

from __future__ import annotations

import json
import sys

import triton
from compile_kernels import cost
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fractal_ssm.ops.cauchy import triton as triton_poles
from fractal_ssm.ops.vandermonde import triton as triton_vandermonde

INTEGERS = {"modes", "length", "rows", "bits", "tiles", "plane", "poles", "points", "chunks"}
CASES = {
    "squares": (triton_vandermonde.squares_kernel, {"BLOCK_N": triton_vandermonde._SQUARED_AT_ONCE}),
    "expand": (triton_vandermonde.expand_kernel, triton_vandermonde.tile(16384, collapsing=False)),
    "expand, short": (triton_vandermonde.expand_kernel, triton_vandermonde.tile(16, collapsing=False)),
    "collapse": (triton_vandermonde.collapse_kernel, triton_vandermonde.tile(16384, True) | {"NEWEST_LAST": True}),
    "collapse, short": (triton_vandermonde.collapse_kernel, triton_vandermonde.tile(16, True) | {"NEWEST_LAST": False}),
    "pole sums": (triton_poles.pole_sums_kernel, triton_poles.FORWARD),
    "pole gradients": (triton_poles.pole_gradients_kernel, triton_poles.BACKWARD),
}


def compile_case(kernel, constants: dict[str, object], target: GPUTarget, real: str):
    names = kernel.arg_names
    signature = {
        name: "constexpr"
        if name in constants
        else "i32"
        if name in INTEGERS
        # The squares are taken in double precision whatever the rest is in.
        else "*fp64"
        if name == "w"
        else real
        for name in names
    }
    # Pointers are 16-byte aligned; a number of modes or positions that is a multiple of 16 is not taken for granted.
    hints = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=target, options={"num_warps": 4})


def main() -> None:
    for name in sys.argv[1:]:
        backend, architecture = name.split(":")
        cuda = backend == "cuda"
        target = GPUTarget(backend, int(architecture) if cuda else architecture, 32 if cuda else 64)
        for case, (kernel, constants) in CASES.items():
            for real in ("*fp32", "*fp64"):
                compiled = compile_case(kernel, constants, target, real)
                row = {"target": name, "case": case, "real": real.removeprefix("*")}
                print(json.dumps(row | cost(compiled, target)), flush=True)


if __name__ == "__main__":
    main()

"""Compile the fused SSM kernels ahead of time, without a GPU, and print what each one costs as JSON lines.

    python compile_fused.py cuda:90 hip:gfx942 [--all]

The blocks are those the launcher chooses for the layers in SHAPES: the widest, or all different ones with --all. Run as
a process of its own: the interpreter's switch must be off when triton is imported.
"""

from __future__ import annotations

import json
import sys

import triton
from compile_kernels import cost
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fractal_ssm.ops.ssm import triton as triton_backend
from fractal_ssm.ops.ssm.triton_kernels import ends_kernel, outputs_kernel, weights_kernel

# (B, L, P, H): the S5 layers of LRA that the rule admits, with the state halved; one narrow, one short.
SHAPES = {
    "pathx": (16, 16384, 128, 128),
    "aan": (16, 4000, 128, 256),
    "pathfinder": (50, 1024, 128, 192),
    "imdb": (32, 4096, 96, 256),
    "listops": (50, 2048, 8, 128),
    "narrow": (32, 4096, 32, 64),
    "short": (64, 256, 64, 128),
}
FORWARD = {"BACKWARD": False, "ADJOINT": False, "HAS_KICK": False}
ADJOINT = {"BACKWARD": True, "ADJOINT": True, "HAS_KICK": True}
CASES = {
    "ends": (ends_kernel, FORWARD),
    "adjoint ends": (ends_kernel, ADJOINT),
    "outputs": (outputs_kernel, FORWARD | {"HAS_X0": True, "HAS_LAST": True}),
    "adjoint outputs": (outputs_kernel, ADJOINT | {"HAS_X0": False, "HAS_LAST": False}),
    "sums and gates": (weights_kernel, FORWARD | {"HAS_KICK": True, "HAS_X0": True, "GATE": True}),
    "adjoint sums": (weights_kernel, ADJOINT | {"HAS_X0": False, "GATE": False}),
}
REALS = {"u", "other", "y"}
WIDE = {"kick_at": "*i64", "last_at": "*i64"}
WIDTHS = {"features", "out_features", "other_features", "modes", "a_sample"}
COUNTS = {"length", "rows", "chunks", "share", "groups"}


def compile_case(kernel, constants: dict[str, object], target: GPUTarget, warps: int, real: str):
    signature = {
        name: "constexpr"
        if name in constants
        else "i32"
        if name in WIDTHS | COUNTS
        else real
        if name in REALS
        else WIDE.get(name, "*fp32")
        for name in kernel.arg_names
    }
    # What a launch really passes: 16-byte aligned pointers and row widths.
    hints = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in WIDTHS
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=target, options={"num_warps": warps, "num_stages": triton_backend.STAGES})


def blocks(cut: triton_backend.Plan, kernel) -> dict[str, object]:
    sums = kernel is weights_kernel
    chosen = {name: value for name, value in cut.constants().items() if name.isupper()}
    chosen["BLOCK_M"] = cut.sum_m if sums else cut.block_m
    chosen["BLOCK_H"] = cut.sum_h if sums else cut.block_h
    return {name: value for name, value in chosen.items() if name in kernel.arg_names}


def plans(every: bool) -> dict[triton_backend.Plan, str]:
    """Different blocks and a layer that gets them; the steps of a chunk pick no kernel."""
    found: dict[tuple, tuple[triton_backend.Plan, str]] = {}
    for name, (batch, length, modes, features) in SHAPES.items():
        cut = triton_backend.plan(batch, length, modes, features, features)
        found.setdefault((cut.block_m, cut.block_p, cut.block_h, cut.sum_m, cut.sum_h), (cut, name))
    chosen = list(found.values())
    return dict(chosen if every else chosen[:1])


def variants(case: str, cuda: bool) -> list[tuple[str, str]]:
    """Types of u and y, and the precisions of the products that this kernel is launched with."""
    found = [("*fp32", "ieee")]
    if case == "outputs":
        found.append(("*bf16", "ieee"))
    if cuda and "sums" not in case:
        found.append(("*fp32", "tf32x3"))
    return found


def main() -> None:
    for name in (word for word in sys.argv[1:] if word != "--all"):
        backend, architecture = name.split(":")
        cuda = backend == "cuda"
        target = GPUTarget(backend, int(architecture) if cuda else architecture, 32 if cuda else 64)
        for cut, layer in plans("--all" in sys.argv).items():
            for case, (kernel, constants) in CASES.items():
                for real, precision in variants(case, cuda):
                    chosen = constants | blocks(cut, kernel) | {"PRECISION": precision}
                    compiled = compile_case(kernel, chosen, target, triton_backend.WARPS[backend], real)
                    row = {"target": name, "case": case, "layer": layer, "real": real[1:], "precision": precision}
                    print(json.dumps(row | cost(compiled, target)), flush=True)


if __name__ == "__main__":
    main()

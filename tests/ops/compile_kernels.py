"""Compile the Triton kernels ahead of time, without a GPU, and print what each one costs as JSON lines.

    python compile_kernels.py cuda:80 cuda:90 hip:gfx942

Run as a process of its own: the interpreter's switch must be off when triton is imported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fractal_ssm.ops.scan import triton as triton_backend
from fractal_ssm.ops.scan import triton_kernels

SCAN = {
    "COMPLEX": True,
    "DESCEND": False,
    "ADJOINT": False,
    "CONSTANT": True,
    "HAS_X0": True,
    "ENDS": False,
    "GATE_GRADIENT": False,
}
ADJOINT = {"ADJOINT": True, "DESCEND": True, "GATE_GRADIENT": True}
CASES = {
    "forward constant": SCAN,
    "forward full": SCAN | {"CONSTANT": False},
    "ends full": SCAN | {"CONSTANT": False, "ENDS": True},
    "adjoint constant": SCAN | ADJOINT,
    "adjoint full": SCAN | ADJOINT | {"CONSTANT": False},
    "forward real": SCAN | {"COMPLEX": False},
}
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
# What a launch really passes: 16-byte aligned pointers and row widths; without these hints the loads are narrow.
ALIGNED = ("width", "a_sample", "a_step")


def compile_case(kernel, constants: dict[str, object], target: GPUTarget, warps: int):
    names = kernel.arg_names
    integers = {"length", "width", "rows", "chunks", "log_rows", "a_sample", "a_step"}
    signature = {name: "constexpr" if name in constants else "i32" if name in integers else "*fp32" for name in names}
    hints = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name] == "*fp32" or name in ALIGNED
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=target, options={"num_warps": warps})


def cost(compiled, target: GPUTarget) -> dict[str, int]:
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        read = {"registers": r"\.vgpr_count:\s+(\d+)", "spills": r"\.vgpr_spill_count:\s+(\d+)"}
        found = {key: int(re.search(pattern, text)[1]) for key, pattern in read.items()}
        return found | {"shared": compiled.metadata.shared}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "-sass")
        )
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spills": int(re.search(r"STACK:(\d+)", usage)[1]) + len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "shared": compiled.metadata.shared,
        "wide_loads": len(re.findall(r"LDG\.E\.128", sass)),
        "loads": len(re.findall(r"\bLDG\b", sass)),
        "shuffles": len(re.findall(r"\bSHFL\b", sass)),
    }


def main() -> None:
    for name in sys.argv[1:]:
        backend, architecture = name.split(":")
        cuda = backend == "cuda"
        target = GPUTarget(backend, int(architecture) if cuda else architecture, 32 if cuda else 64)
        for case, constants in CASES.items():
            cut = triton_backend.plan(32, 4096, 128, 132, constants["ADJOINT"])
            blocks = {"BLOCK_L": cut.block_l, "BLOCK_W": cut.block_w}
            show(name, case, triton_kernels.scan_kernel, constants | blocks, target, cut.warps)


def show(name: str, case: str, kernel, constants: dict[str, object], target: GPUTarget, warps: int) -> None:
    compiled = compile_case(kernel, constants, target, warps)
    print(json.dumps({"target": name, "case": case} | cost(compiled, target)), flush=True)


if __name__ == "__main__":
    main()

"""Trained layers and models for programs without this package: real arithmetic, torch.export, ONNX.

    export_onnx(model, "model.onnx")                     scores of whole sequences
    export_onnx(layer, "step.onnx", form="step")         one position, with the state in and out
    export_program(real_step(layer))                     torch.export, for AOTInductor and ExecuTorch

docs/export.md shows how to run the files.
"""

from .layers import real_layer
from .onnx import export_onnx
from .programs import RealProgram, export_program, real_forward, real_step

__all__ = ["RealProgram", "export_onnx", "export_program", "real_forward", "real_layer", "real_step"]

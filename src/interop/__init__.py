"""Adapters that give the layers of this package the interfaces of other libraries.

`fractal_ssm.interop.s4` has the interface of state-spaces/s4's sequence modules; `fractal_ssm.interop.hf` provides
models for the transformers library (pip install "fractal-ssm[hf]"). `fractal_ssm.load_published` loads weights of
published implementations.
"""

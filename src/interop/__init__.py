"""Our layers in other people's code: adapters to the interfaces that their registries and trainers expect.

`fractal_ssm.interop.s4` has the interface of state-spaces/s4's sequence modules; `fractal_ssm.interop.hf` is a model of
the transformers library (needs the extra: pip install "fractal_ssm[hf]"). Weights of the published codes are loaded by
`fractal_ssm.load_published`.
"""

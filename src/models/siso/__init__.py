"""Base of the single-input single-output layers: H independent linear systems, run as one long convolution.

    x_k = A_bar x_{k-1} + B_bar u_k,  y_k = C x_k + D u_k     for each feature, with a state of its own
    y = K * u,  K_l = C A_bar^l B_bar                         the same from the zero state, by FFT

A layer builds a discrete system (`System`: diagonal here, dense in s4) from its parameters; `SISOLayer` runs it.
"""

from .diagonal import DiagonalSISO
from .layer import SISOLayer
from .parameters import dss_input, initial_steps, keep_length, step_size
from .system import DiagonalSystem, System

__all__ = [
    "DiagonalSISO",
    "DiagonalSystem",
    "SISOLayer",
    "System",
    "dss_input",
    "initial_steps",
    "keep_length",
    "step_size",
]

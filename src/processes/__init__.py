"""Long-memory processes: exact samples, covariances and spectra in closed form, optimal predictors and filters.

Everything is float64 numpy and scipy and seeded by a `numpy.random.Generator` that the caller passes.
"""

from .arfima import Arfima
from .estimation import posterior_mean, whittle
from .filtering import Smoother, WienerFilter, filtering_limit, smoothing_limit
from .fractional import FractionalMotion, FractionalNoise
from .prediction import DurbinLevinson, OptimalPredictor, ShortPredictor, durbin_levinson, innovation_variance, wold
from .relaxation import Relaxations
from .ring import PowerSpectrum
from .stationary import StationaryGaussian
from .traffic import OnOffTraffic
from .volatility import LongMemoryVolatility

__all__ = [
    "Arfima",
    "DurbinLevinson",
    "FractionalMotion",
    "FractionalNoise",
    "LongMemoryVolatility",
    "OnOffTraffic",
    "OptimalPredictor",
    "PowerSpectrum",
    "Relaxations",
    "ShortPredictor",
    "Smoother",
    "StationaryGaussian",
    "WienerFilter",
    "durbin_levinson",
    "filtering_limit",
    "innovation_variance",
    "posterior_mean",
    "smoothing_limit",
    "whittle",
    "wold",
]

"""Autoregressions and ARIMA from `statsmodels`, fitted once and walking forward; the Kalman filter bridges gaps."""

from __future__ import annotations

import warnings

import numpy as np

from ...errors import UsageError


def arima_forecast(
    values: np.ndarray, n_train: int, order: tuple[int, int, int], known: np.ndarray | None = None
) -> np.ndarray:
    """The next value, at every row, by an ARIMA(p, d, q) whose parameters are estimated on the first rows.

    Maximum likelihood on values[:n_train]; then the filter runs on with these parameters, so the forecast of row t is
    made of values[: t + 1]. A missing value, NaN, is left out of the likelihood and of the filter.

    Args:
        values: (n,).
        n_train: rows for the estimate.
        order: p, d, q; with d = 0 a constant is estimated.
        known: (n + 1, m) regressors known beforehand, such as the season; None for none.
    Returns:
        (n,) forecasts of values[t + 1].
    Raises:
        UsageError: `statsmodels` is missing.
    """
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ImportError as error:
        raise UsageError(f"ARIMA needs the package statsmodels ({error}). Run: pip install statsmodels") from error

    exog = (lambda stop: None) if known is None else (lambda stop: known[:stop])
    # One more row, missing, so that the last row has a forecast too.
    longer = np.append(values, np.nan)
    with warnings.catch_warnings():
        # statsmodels warns whenever it replaces non-stationary starting values by zeros.
        warnings.filterwarnings("ignore", message="Non-", category=UserWarning)
        fitted = ARIMA(values[:n_train], order=order, exog=exog(n_train)).fit(method_kwargs={"maxiter": 500})
    walking = ARIMA(longer, order=order, exog=exog(len(longer))).filter(fitted.params)
    return np.asarray(walking.predict())[1:]

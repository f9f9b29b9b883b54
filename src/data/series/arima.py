"""Autoregressions and ARIMA from `statsmodels`, fitted once, then run over all rows; the Kalman filter bridges gaps."""

from __future__ import annotations

import warnings

import numpy as np

from ...errors import UsageError


def arima_forecast(
    values: np.ndarray, n_train: int, order: tuple[int, int, int], known: np.ndarray | None = None
) -> np.ndarray:
    """Forecast the next value at every row by an ARIMA(p, d, q) whose parameters are estimated on the first rows.

    The parameters maximise the likelihood of values[:n_train]; the filter then runs over all rows with them, so the
    forecast at row t uses values[: t + 1] only. Missing values, NaN, are left out of the likelihood and of the filter.

    Args:
        values: (n,) the series.
        n_train: number of rows for the estimate.
        order: p, d, q; with d = 0 a constant is estimated.
        known: (n + 1, m) regressors known in advance, such as the season; None for none.
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
    # Append a missing row, so that the last row has a forecast too.
    longer = np.append(values, np.nan)
    with warnings.catch_warnings():
        # statsmodels warns whenever it replaces non-stationary starting values by zeros.
        warnings.filterwarnings("ignore", message="Non-", category=UserWarning)
        fitted = ARIMA(values[:n_train], order=order, exog=exog(n_train)).fit(method_kwargs={"maxiter": 500})
    walking = ARIMA(longer, order=order, exog=exog(len(longer))).filter(fitted.params)
    return np.asarray(walking.predict())[1:]

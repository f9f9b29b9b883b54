"""Established volatility models, fitted once and run over all rows: heterogeneous autoregression, GARCH, FIGARCH."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError


def har_forecast(
    daily: np.ndarray, target: np.ndarray, components: tuple[int, ...], rows: np.ndarray, log: bool
) -> np.ndarray:
    """Heterogeneous autoregression (Corsi 2009): a regression on averages of the daily variance over several spans.

    y_t = c + sum_k b_k m_k(t),  m_k(t) = mean of daily[t - k + 1 .. t], by least squares; with `log` of ln m_k.

    Args:
        daily: (n,) variance of each day, >= 0.
        target: (n,) variance after row t, or with `log` its logarithm.
        components: days k of the averages.
        rows: rows that the coefficients are fitted to.
        log: whether target and averages are logarithms.
    Returns:
        (n,) positive forecasts of the variance; with `log` the exponential of the forecast, without it at least the
        smallest variance of `rows`.
    """
    sums = np.concatenate([[0.0], np.cumsum(daily)])
    days = np.arange(1, len(daily) + 1)
    averages = [(sums[days] - sums[np.maximum(days - k, 0)]) / np.minimum(days, k) for k in components]
    columns = np.stack(averages, axis=1)
    if log:
        # A mean of zero, after days without any change, becomes the smallest positive mean of the fitted rows.
        floor = np.min(columns[rows], where=columns[rows] > 0, initial=np.inf)
        columns = np.log(np.where(columns > 0, columns, floor))
    design = np.column_stack([np.ones(len(daily)), columns])
    coefficients = np.linalg.lstsq(design[rows], target[rows], rcond=None)[0]
    forecasts = design @ coefficients
    return np.exp(forecasts) if log else np.maximum(forecasts, target[rows].min())


def arch_forecasts(returns: np.ndarray, n_train: int, horizon: int) -> dict[str, np.ndarray]:
    """Forecast the total variance of the next `horizon` returns by GARCH(1, 1) and FIGARCH(1, d, 1), constant mean.

    The parameters are fitted by quasi maximum likelihood to the first `n_train` returns and used for every day; each
    forecast uses the returns up to that day. (The recursion starts from an average of the first 75 squared residuals,
    which are training rows.)

    Args:
        returns: (n,) daily returns in percent.
        n_train: number of returns for the fit.
        horizon: number of days.
    Returns:
        name -> (n,) variance in percent squared.
    Raises:
        UsageError: `arch` is missing.
    """
    try:
        from arch import arch_model
    except ImportError as error:
        raise UsageError(f"GARCH and FIGARCH need the package arch ({error}). Run: pip install arch") from error
    forecasts = {}
    for name, volatility in (("GARCH(1,1)", "GARCH"), ("FIGARCH(1,d,1)", "FIGARCH")):
        fitted = arch_model(returns[:n_train], vol=volatility, p=1, q=1, rescale=False).fit(disp="off")
        fixed = arch_model(returns, vol=volatility, p=1, q=1, rescale=False).fix(fitted.params)
        forecasts[name] = fixed.forecast(horizon=horizon, start=0, reindex=False).variance.to_numpy().sum(axis=1)
    return forecasts

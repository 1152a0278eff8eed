"""Statistical functions of whole columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["beta_cdf", "beta_inv", "beta_pdf", "erf", "erfc", "gamma", "loggamma", "welch_test"]

Reals = NDArray[np.float64]


def beta_cdf(x: Reals, alpha: Reals, beta: Reals) -> Reals:
    """Return the probability that a beta-distributed value is at most ``x``; NaN outside of 0 to 1."""
    return _where_valid((x >= 0) & (x <= 1) & (alpha > 0) & (beta > 0), special.betainc(alpha, beta, x))


def beta_inv(probability: Reals, alpha: Reals, beta: Reals) -> Reals:
    """Return the value that a beta-distributed one is below with that probability; null if it is none."""
    known = _where_valid((alpha > 0) & (beta > 0), special.betaincinv(alpha, beta, probability))
    return np.ma.masked_array(known, ~((probability >= 0) & (probability <= 1)))


def beta_pdf(x: Reals, alpha: Reals, beta: Reals) -> Reals:
    """Return the density of the beta distribution."""
    with np.errstate(all="ignore"):
        logarithm = special.xlogy(alpha - 1, x) + special.xlog1py(beta - 1, -x) - special.betaln(alpha, beta)
        return _where_valid((x >= 0) & (x <= 1) & (alpha > 0) & (beta > 0), np.exp(logarithm))


def erf(x: Reals) -> Reals:
    """Return the error function."""
    return np.asarray(special.erf(x))


def erfc(x: Reals) -> Reals:
    """Return the complementary error function."""
    return np.asarray(special.erfc(x))


def gamma(x: Reals) -> Reals:
    """Return the gamma function; NaN at its poles."""
    return np.asarray(special.gamma(x))


def loggamma(x: Reals) -> Reals:
    """Return the logarithm of the absolute value of the gamma function."""
    return np.asarray(special.gammaln(x))


def welch_test(mean1: Reals, variance1: Reals, count1: Reals, mean2: Reals, variance2: Reals, count2: Reals) -> Reals:
    """Return the two-sided p-value of Welch's test for samples of unequal variance."""
    with np.errstate(all="ignore"):
        one, other = variance1 / count1, variance2 / count2
        t = (mean1 - mean2) / np.sqrt(one + other)
        freedom = (one + other) ** 2 / (one**2 / (count1 - 1) + other**2 / (count2 - 1))
        return np.asarray(2 * special.stdtr(freedom, -np.abs(t)))


def _where_valid(valid: NDArray[np.bool_], values: Reals) -> Reals:
    return np.where(valid, values, np.nan)

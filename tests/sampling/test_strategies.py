"""Shares of a batch: each rounded down or up, exact in the long run."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covis.core.errors import InputError
from covis.sampling import STRATEGIES, Band, Strategy
from covis.sampling.composition import strategy

PUBLISHED = {
    "A": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 4), (0, 0, 1 / 4)],
    "B": [(0.75, 1, 1 / 4), (0.5, 0.75, 1 / 4), (0, 0.5, 1 / 4), (0, 0, 1 / 4)],
    "C": [(0.5, 1, 1 / 3), (0, 0.5, 1 / 3), (0, 0, 1 / 3)],
    "D": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 2)],
    "binary": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 2)],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_compositions_are_the_published_ones(name):
    found = [(b.low, b.high, float(b.share)) for b in STRATEGIES[name].bands]
    assert np.array(found) == pytest.approx(np.array(PUBLISHED[name]))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_each_similarity_is_in_exactly_one_band(name):
    for psi in (0.0, 1e-9, 0.25, np.nextafter(0.5, 0), 0.5, 0.74, 0.75, 0.999, 1.0):
        assert sum(psi in band for band in STRATEGIES[name].bands) == 1
        (k,) = STRATEGIES[name].band_of(np.array([psi]))
        assert psi in STRATEGIES[name].bands[k]


@given(name=st.sampled_from(sorted(STRATEGIES)), size=st.integers(1, 200), index=st.integers(0, 10**6))
def test_a_quota_is_the_share_rounded_down_or_up(name, size, index):
    chosen = STRATEGIES[name]
    quota = chosen.quota(size, index)
    assert quota.sum() == size
    for count, band in zip(quota, chosen.bands, strict=True):
        assert int(band.share * size) <= count <= int(band.share * size) + (band.share * size % 1 != 0)


@pytest.mark.parametrize(("name", "size"), [("C", 32), ("A", 31), ("B", 5), ("A", 1)])
def test_shares_are_exact_in_the_long_run(name, size):
    total = sum(STRATEGIES[name].quota(size, k) for k in range(3000))
    expected = [float(b.share) * size * 3000 for b in STRATEGIES[name].bands]
    assert total == pytest.approx(expected, abs=3)


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match="add up"):
        Strategy("mine", (Band(0.5, 1, Fraction(1, 2)), Band(0, 0, Fraction(1, 4), zero=True)))


def test_bands_that_overlap_are_refused():
    with pytest.raises(InputError, match=r"overlap: \[0.4, 1\], \[0, 0.5\)"):
        Strategy("mine", (Band(0.4, 1, Fraction(1, 2)), Band(0, 0.5, Fraction(1, 2), zero=True)))


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="binary"):
        strategy("binry")

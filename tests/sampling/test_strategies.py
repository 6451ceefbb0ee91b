"""Shares of a batch: each rounded down or up, exact in the long run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covis.sampling import STRATEGIES

PUBLISHED = {
    "A": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 4), (0, 0, 1 / 4)],
    "B": [(0.75, 1, 1 / 4), (0.5, 0.75, 1 / 4), (0, 0.5, 1 / 4), (0, 0, 1 / 4)],
    "C": [(0.5, 1, 1 / 3), (0, 0.5, 1 / 3), (0, 0, 1 / 3)],
    "D": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 2)],
    "binary": [(0.5, 1, 1 / 2), (0, 0.5, 1 / 2)],
}


def test_compositions_are_the_published_ones():
    for name, expected in PUBLISHED.items():
        found = [(b.low, b.high, float(b.share)) for b in STRATEGIES[name].bands]
        assert np.array(found) == pytest.approx(np.array(expected))
    assert set(PUBLISHED) == set(STRATEGIES)


@pytest.mark.parametrize(("name", "bands"), [("B", [3, 2, 2, 2, 1, 1, 0, 0]), ("D", [1, 1, 1, 1, 0, 0, 0, 0])])
def test_each_similarity_is_in_one_band(name, bands):
    psi = np.array([0.0, 1e-9, 0.25, np.nextafter(np.float32(0.5), np.float32(0)), 0.5, 0.74, 0.75, 1.0], np.float32)
    assert STRATEGIES[name].band_of(psi).tolist() == bands


@given(name=st.sampled_from(sorted(STRATEGIES)), size=st.integers(1, 200), index=st.integers(0, 10**6))
def test_a_quota_is_the_share_rounded_down_or_up(name, size, index):
    chosen = STRATEGIES[name]
    quota = chosen.quota(size, index)
    assert quota.sum() == size
    for count, band in zip(quota, chosen.bands, strict=True):
        assert int(band.share * size) <= count <= int(band.share * size) + (band.share * size % 1 != 0)


@pytest.mark.parametrize(("name", "size"), [("C", 32), ("A", 31), ("B", 5), ("A", 1)])
def test_shares_are_exact_in_the_long_run(name, size):
    total = STRATEGIES[name].quota(size, np.arange(3000)).sum(axis=0)
    expected = [float(b.share) * size * 3000 for b in STRATEGIES[name].bands]
    assert total == pytest.approx(expected, abs=3)

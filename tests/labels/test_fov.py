"""Aligned pairs: the quoted calibration, measures, unknowns, and refusal of bad input."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.labels import fov_similarity
from covis.labels.fov import MEASURES

CALIBRATION = [  # metres sideways, metres forward, degrees apart, IoU %, overlap %
    (0.0, 0.0, 40.0, 38.46, 55.56),
    (25.0, 0.0, 0.0, 29.00, 44.97),
    (0.0, 25.0, 0.0, 16.14, 27.80),
]


@pytest.mark.parametrize(("sideways", "forward", "turn", "iou", "overlap"), CALIBRATION)
def test_quoted_calibration_is_the_overlap_not_the_iou(sideways, forward, turn, iou, overlap):
    pair = [[0.0, 0.0]], [0.0], [[sideways, forward]], [turn]
    assert fov_similarity(*pair)[0] * 100 == pytest.approx(overlap, abs=0.005)
    assert fov_similarity(*pair, measure="iou")[0] * 100 == pytest.approx(iou, abs=0.005)


def test_half_of_the_overlap_is_lost_at_an_angle_of_half_the_opening():
    turns = [45.0, 51.0, 40.0]
    for fov, turn in ((90, 45.0), (102, 51.0), (80, 40.0)):
        assert fov_similarity([[0, 0]], [0], [[0, 0]], [turn], fov_deg=fov)[0] == pytest.approx(0.5), turns


def test_headings_are_clockwise_from_north():
    east_of_me = [[60.0, 0.0]]
    assert fov_similarity([[0, 0]], [90], east_of_me, [270])[0] > 0.5
    assert fov_similarity([[0, 0]], [270], east_of_me, [90])[0] == 0
    north_of_me = [[0.0, 63.0]]
    assert fov_similarity([[0, 0]], [0], north_of_me, [180])[0] == pytest.approx(0.82, abs=0.005)


def test_headings_of_any_range_are_one_direction():
    given = np.array([-30.0, 330.0, 690.0, -390.0])
    psi = fov_similarity(np.zeros((4, 2)), given, np.full((4, 2), 9.0), np.full(4, 20.0))
    assert np.ptp(psi) < 1e-12


def test_measures_of_unequal_views():
    pair = {"xy_a": [[0, 0]], "heading_a": [0], "xy_b": [[3, 8]], "heading_b": [10]}
    psi = {m: fov_similarity(**pair, radius_m=(20, 50), fov_deg=(60, 120), measure=m)[0] for m in MEASURES}
    a, b = np.pi / 6 * 20**2, np.pi / 3 * 50**2
    shared = psi["overlap"] * min(a, b)
    assert psi["iou"] == pytest.approx(shared / (a + b - shared))
    swapped = fov_similarity([[3, 8]], [10], [[0, 0]], [0], radius_m=(50, 20), fov_deg=(120, 60))[0]
    assert swapped == pytest.approx(psi["overlap"])


def test_a_camera_of_unknown_heading_sees_the_full_circle_not_north():
    south, unknown = [[0.0, -30.0]], [np.nan]
    assert fov_similarity([[0, 0]], [0], south, [180])[0] == 0
    psi = fov_similarity([[0, 0]], unknown, south, [180])[0]
    assert psi == fov_similarity([[0, 0]], [77], south, [180], fov_deg=(360, 90))[0] > 0
    both = fov_similarity([[0, 0]], unknown, [[50, 0]], unknown, measure="iou")[0]
    lens = 2 * 50**2 * np.arccos(0.5) - 25 * np.sqrt(4 * 50**2 - 50**2)
    assert both == pytest.approx(lens / (2 * np.pi * 50**2 - lens))


def test_an_unknown_position_is_null_not_zero():
    psi = fov_similarity([[0, 0], [np.nan, np.nan]], [0, 0], [[0, 1], [0, 1]], [0, 0])
    assert psi[0] > 0
    assert np.isnan(psi[1])


def test_blocks_and_mixed_openings_equal_one_at_a_time():
    rng = np.random.default_rng(5)
    n = 1500
    a, b, turn = rng.uniform(-60, 60, (n, 2)), rng.uniform(-60, 60, (n, 2)), rng.uniform(0, 360, (2, n))
    radius, fov = rng.uniform(10, 90, (2, n)), rng.uniform(1, 360, (2, n))
    together = fov_similarity(a, turn[0], b, turn[1], radius_m=(radius[0], radius[1]), fov_deg=(fov[0], fov[1]))
    alone = [
        fov_similarity(
            a[[k]], turn[0, [k]], b[[k]], turn[1, [k]], radius_m=tuple(radius[:, k]), fov_deg=tuple(fov[:, k])
        )[0]
        for k in range(n)
    ]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)


def test_no_pairs_give_no_values():
    assert fov_similarity(np.zeros((0, 2)), [], np.zeros((0, 2)), []).shape == (0,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heading_a": [0.0, 1.0]}, r"positions \(1, 2\) and headings \(2,\)"),
        ({"xy_a": [0.0, 0.0]}, "expected"),
        ({"xy_b": [[0.0, 0.0], [1.0, 1.0]], "heading_b": [0.0, 0.0]}, "aligned"),
        ({"heading_b": [np.inf]}, "infinite"),
        ({"xy_b": [[np.inf, 0.0]]}, "infinite"),
        ({"radius_m": 0.0}, "radius_m is 0.0; expected metres above 0"),
        ({"radius_m": np.nan}, "radius_m is nan"),
        ({"radius_m": (50.0, -1.0)}, "radius_m is -1.0"),
        ({"fov_deg": 361.0}, "fov_deg is 361.0; expected degrees above 0, up to 360"),
        ({"fov_deg": [90.0, 90.0]}, "fov_deg has shape"),
        ({"measure": "iuo"}, "did you mean 'iou'"),
    ],
)
def test_bad_input_is_refused_with_its_reason(change, says):
    good = {"xy_a": [[0.0, 0.0]], "heading_a": [0.0], "xy_b": [[0.0, 0.0]], "heading_b": [0.0]}
    with pytest.raises(InputError, match=says):
        fov_similarity(**{**good, **change})

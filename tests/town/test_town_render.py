"""Ray casting against plain loops and hand-made scenes; images that depend on nothing but their configuration."""

import dataclasses
import math

import numpy as np
import pytest

from covis.town import layout, traversals
from covis.town.casting import END_M, FAR_M, GROUND, SKY, cast
from covis.town.config import TownConfig
from covis.town.layout import District, build_scene, district
from covis.town.render import Shot, measure
from covis.town.surfaces import outline
from covis.town.traversals import rotations
from covis.town.view import View, intrinsics

CONFIG = TownConfig.small()
SOLID_CROWNS = 100.0  # crowns without gaps, so that the oracle needs no noise


def plain_wall(width=8.0, top=6.0, profile=layout.FLAT):
    look = np.zeros(layout.HOUSE_FIELDS)
    look[[layout.WIDTH, layout.TOP, layout.EAVE, layout.PROFILE, layout.COLUMNS]] = width, top, top / 2, profile, 2
    look[[layout.GROUND_H, layout.FLOOR_H, layout.CHIMNEY]] = 3.0, 3.0, -1.0
    return look


def one_wall(x0, x1, y, **look):
    """A scene of a single wall at `y`, seen from the south, and a street in front of it."""
    streets = np.array([[-50.0, 0.0, 50.0, 0.0, 4.0, 2.0]])
    facade = plain_wall(abs(x1 - x0), **look)
    place = District("test", streets, np.array([[x0, y, x1, y]]), facade[None], np.zeros((0, layout.SOLID_FIELDS)))
    return build_scene(place, np.zeros((0, layout.SOLID_FIELDS)))


def camera_at(heading_deg, pitch_deg=0.0, roll_deg=0.0):
    return rotations(np.array([heading_deg]), np.array([pitch_deg]), np.array([roll_deg]))[0]


def depth_of(scene, heading_deg, size=(40, 30), at=(0.0, 0.0, 1.5)):
    camera = intrinsics(CONFIG, size)
    return measure(Shot(scene, np.zeros((0, layout.SOLID_FIELDS)), 1.0, np.array(at), camera_at(heading_deg), camera))


def test_a_wall_straight_ahead_has_its_distance_as_depth_everywhere_on_it():
    depth, items, normals = depth_of(one_wall(-40.0, 40.0, 10.0), 0.0)
    np.testing.assert_allclose(depth[items == 0], 10.0, atol=1e-9)
    np.testing.assert_allclose(normals[items == 0], np.tile([0.0, -1.0, 0.0], ((items == 0).sum(), 1)), atol=1e-12)
    assert (items == 0).sum() > 300
    assert (depth[items == SKY] == np.inf).all()


@pytest.mark.parametrize(
    ("heading", "columns"), [(0.0, slice(20, 40)), (180.0, slice(0, 0)), (90.0, slice(0, 20)), (45.0, slice(0, 40))]
)
def test_a_wall_to_the_north_east_appears_on_the_side_it_stands(heading, columns):
    _, items, _ = depth_of(one_wall(1e-6, 100.0, 1.0), heading)
    seen = np.flatnonzero((items == 0).any(axis=0))
    assert seen.tolist() == list(range(40))[columns]


def test_ground_depth_follows_from_the_height_of_the_camera():
    scene = one_wall(-40.0, 40.0, 300.0)
    depth, items, _ = depth_of(scene, 0.0, at=(0.0, 0.0, 1.5))
    fx, _, _, cy, _, _ = intrinsics(CONFIG, (40, 30))
    row, column = np.nonzero(items == GROUND)
    np.testing.assert_allclose(depth[row, column], 1.5 * fx / (row + 0.5 - cy), rtol=1e-9)


def test_rays_pass_over_a_gable_and_end_on_what_is_below_its_outline():
    scene = one_wall(-10.0, 10.0, 20.0, top=12.0, profile=layout.GABLE)
    for x, height in [(0.0, 12.0), (5.0, 9.0), (-9.0, 6.6)]:
        for dz, item in ((-0.05, 0), (0.05, SKY)):
            ray = np.array([[x, 20.0, height + dz - 1.5]])
            ray /= np.linalg.norm(ray)
            hits = cast(
                scene, np.zeros((0, layout.SOLID_FIELDS)), np.array([0.0, 0.0, 1.5]), ray, 1.0, np.empty((1, 6))
            )
            assert hits[0, 1] == item


def test_pitch_looks_up_and_roll_turns_clockwise():
    np.testing.assert_allclose(camera_at(0.0, 90.0)[:, 2], [0.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(camera_at(90.0)[:, 2], [1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(camera_at(0.0)[:, 1], [0.0, 0.0, -1.0], atol=1e-12)
    turned = camera_at(0.0, 0.0, 10.0)
    assert turned[2, 0] < 0  # the camera's right side dips
    np.testing.assert_allclose(turned.T @ turned, np.eye(3), atol=1e-12)


def nearest_by_plain_loops(scene, movers, origin, ray):
    """Distance and item of the first thing on a ray, from every wall and solid, without any grid."""
    best, item = FAR_M, SKY
    if ray[2] < -1e-9 and -origin[2] / ray[2] <= END_M:
        best, item = -origin[2] / ray[2], GROUND
    for n, (wall, look) in enumerate(zip(scene.walls, scene.facades, strict=True)):
        a, b = wall[:2], wall[2:]
        matrix = np.column_stack([ray[:2], a - b])
        if abs(np.linalg.det(matrix)) < 1e-12:
            continue
        t, share = np.linalg.solve(matrix, a - origin[:2])
        z = origin[2] + t * ray[2]
        if 1e-6 < t < best and 0 <= share <= 1 and 0 <= z <= outline.py_func(share * look[layout.WIDTH], look[None], 0):
            best, item = t, n
    for n, row in enumerate(np.concatenate([scene.solids, movers])):
        t = first_in_solid(row, origin, ray)
        if t is not None and 1e-6 < t < best:
            best, item = t, len(scene.walls) + n
    return best, item


def first_in_solid(row, origin, ray):
    turn = np.array([[row[layout.COS], row[layout.SIN], 0], [-row[layout.SIN], row[layout.COS], 0], [0, 0, 1.0]])
    round_ = row[layout.SHAPE] == layout.ELLIPSOID
    height = row[layout.Z0] if round_ else (row[layout.Z0] + row[layout.Z1]) / 2
    half = np.array(
        [
            row[layout.HALF_X],
            row[layout.HALF_Y],
            row[layout.Z1] if round_ else (row[layout.Z1] - row[layout.Z0]) / 2,
        ]
    )
    o, d = turn @ (origin - [row[layout.X], row[layout.Y], height]) / half, turn @ ray / half
    if round_:
        a, b, c = d @ d, 2 * o @ d, o @ o - 1
        under = b * b - 4 * a * c
        return None if under <= 0 else (-b - math.sqrt(under)) / (2 * a)
    with np.errstate(divide="ignore"):
        limits = np.sort([(-1 - o) / d, (1 - o) / d], axis=0)
    near, far = limits[0].max(), limits[1].min()
    return near if near <= far else None


def test_the_grid_finds_what_plain_loops_over_everything_find():
    view = View.of(CONFIG, "test", "autumn-evening")
    rng = np.random.default_rng(1)
    for i in rng.integers(len(view.drive), size=4):
        movers = view.shot(int(i)).movers
        rays = rng.normal(size=(60, 3)) * [1.0, 1.0, 0.25]
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        origin = view.drive.position[i]
        hits = cast(view.scene, movers, origin, rays, SOLID_CROWNS, np.empty((len(rays), 6)))
        for ray, hit in zip(rays, hits, strict=True):
            distance, item = nearest_by_plain_loops(view.scene, movers, origin, ray)
            assert hit[1] == item
            assert hit[0] == pytest.approx(distance, rel=1e-9)


def test_normals_are_unit_vectors_and_walls_turn_them_to_the_camera():
    view = View.of(CONFIG, "val", "summer-noon")
    _, items, normals = measure(view.shot(5))
    np.testing.assert_allclose(np.linalg.norm(normals[items != SKY], axis=1), 1.0, atol=1e-9)
    camera = intrinsics(CONFIG)
    row, column = np.nonzero((items >= 0) & (items < len(view.scene.walls)))
    local = np.column_stack(
        [(column + 0.5 - camera[2]) / camera[0], (row + 0.5 - camera[3]) / camera[1], np.ones(len(row))]
    )
    towards = local @ view.drive.rotation[5].T
    assert (np.einsum("pi,pi->p", towards, normals[row, column]) < 0).all()


def test_passers_by_only_ever_hide_what_is_behind_them():
    view = View.of(CONFIG, "train", "autumn-evening")
    busy = next(i for i in range(len(view.drive)) if len(view.shot(i).movers))
    shot = view.shot(busy)
    with_them, without = measure(shot)[0], measure(shot._replace(movers=shot.movers[:0]))[0]
    assert (with_them <= without).all()
    assert (with_them < without).any()


def test_an_image_is_the_same_every_time_and_another_seed_is_another_town():
    first = View.of(CONFIG, "test", "dusk-rain").image(3)
    place = district(CONFIG, "test")  # made anew, past every cache
    fresh = View(CONFIG, place, traversals.traversal(CONFIG, place, traversals.CONDITIONS["dusk-rain"]))
    np.testing.assert_array_equal(first, fresh.image(3))
    other = View.of(TownConfig.small(seed=1), "test", "dusk-rain").image(3)
    assert np.abs(first.astype(int) - other).mean() > 5


@pytest.mark.parametrize("size", [(32, 24), (128, 96), (50, 70)])
def test_any_size_shows_the_same_picture(size):
    view = View.of(CONFIG, "test", "summer-noon")
    picture = view.image(7, size)
    assert picture.shape == (size[1], size[0], 3)
    assert picture.dtype == np.uint8
    if size == (128, 96):
        coarse = view.image(7, (32, 24)).astype(float)
        shrunk = picture.reshape(24, 4, 32, 4, 3).mean(axis=(1, 3))
        assert np.abs(shrunk - coarse).mean() < 8
        assert np.corrcoef(shrunk.ravel(), coarse.ravel())[0, 1] > 0.95


def test_conditions_look_different_from_the_same_place():
    place = View.of(CONFIG, "test", "summer-noon")
    looks = []
    for condition in traversals.CONDITIONS.values():
        drive = dataclasses.replace(place.drive, condition=condition)
        looks.append(View(CONFIG, place.place, drive).image(4).astype(float))
    for k, look in enumerate(looks):
        for other in looks[:k]:
            assert np.abs(look - other).mean() > 12

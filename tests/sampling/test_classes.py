"""Classes of places: cells and headings as a loop makes them, groups whose members are apart, batches that repeat."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from covis.core.errors import InputError
from covis.images import ImageSet, Split
from covis.losses import LargeMarginCosine
from covis.poses import Poses
from covis.sampling import Classes
from covis.training.batch_images import BatchImages


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(0)
    xy, heading = rng.uniform(-60, 60, (3000, 2)), rng.uniform(0, 360, 3000)
    heading[:20], xy[20:30] = np.nan, np.nan
    images = ImageSet.of(
        "photos", [f"{i}.jpg" for i in range(3000)], Poses(xy, heading), rng.integers(0, 2, 3000).astype(str)
    )
    return Split(images, images)


def made(split, **fields):
    return Classes(**fields).sampler(None, split, 3, loss=LargeMarginCosine(), graphs={})


@pytest.mark.parametrize("least", [1, 4])
def test_cells_headings_and_groups_are_those_of_a_loop(split, least):
    sampler, images = made(split, least=least, apart=3, turns_apart=4), split.database
    keys = {}
    for i in range(len(images)):
        (x, y), h = images.poses.xy[i], images.poses.heading[i]
        if np.isfinite([x, y, h]).all():
            keys.setdefault((images.group[i], int(x // 10), int(y // 10), int(h // 30)), []).append(i)
    large = {k: v for k, v in keys.items() if len(v) >= least}
    assert sampler.classes == len(large)
    for members in large.values():
        assert len(set(sampler.kinds[members].tolist())) == 1
    assert (sampler.kinds >= 0).sum() == sum(map(len, large.values()))
    groups = {}
    for (_, e, n, h), members in large.items():
        groups.setdefault((e % 3, n % 3, h % 4), set()).update(members)
    assert sorted(map(sorted, groups.values())) == sorted(m.tolist() for m in sampler.members)


def test_a_batch_holds_images_of_one_group_and_an_epoch_passes_over_them(split):
    sampler = made(split, least=2, size=16)
    for epoch in range(3):
        seen = []
        for index in range(len(sampler)):
            batch = sampler.batch(epoch, index)
            np.testing.assert_array_equal(batch.classes[batch.target], sampler.kinds[batch.database])
            assert len(set(sampler.group[batch.classes].tolist())) == 1
            np.testing.assert_array_equal(sampler.batch(epoch, index).database, batch.database)
            seen += batch.database.tolist()
        group = sampler.members[epoch % len(sampler.members)]
        assert set(seen) <= set(group.tolist())
        assert len(set(seen)) == min(len(group), len(sampler) * 16)
    assert not np.array_equal(replace(sampler, seed=4).batch(0, 0).database, sampler.batch(0, 0).database)


def test_focal_points_are_those_of_a_loop(split):
    """EigenPlaces: the cell's mean position, its principal directions, a point along each, images that face it."""
    sampler, images = made(split, axis="focal", cell_m=15.0, focal_m=10.0, angle_deg=60.0, least=3), split.database
    cells, classes = {}, {}
    for i in range(len(images)):
        x, y = images.poses.xy[i]
        if np.isfinite([x, y, images.poses.heading[i]]).all():
            cells.setdefault((int(x // 15), int(y // 15)), []).append(i)
    for cell, members in cells.items():
        xy = images.poses.xy[members]
        mean = xy.mean(0)
        values, vectors = np.linalg.eigh(np.cov((xy - mean).T))
        along = vectors[:, np.argmax(values)]
        along = along if along[0] > 0 or (along[0] == 0 and along[1] > 0) else -along
        right = np.array([along[1], -along[0]])
        for i in members:
            best = None
            for side, direction in enumerate((along, right, -along, -right)):
                to = mean + 10 * direction - images.poses.xy[i]
                view = np.radians(images.poses.heading[i])
                facing = to @ [np.sin(view), np.cos(view)] / np.linalg.norm(to)
                if best is None or facing > best[0]:
                    best = facing, side
            if best[0] >= np.cos(np.radians(30)):
                classes.setdefault((images.group[i], *cell, best[1]), []).append(i)
    large = sorted(sorted(members) for members in classes.values() if len(members) >= 3)
    ours = [np.flatnonzero(sampler.kinds == k).tolist() for k in range(sampler.classes)]
    assert sorted(ours) == large
    assert len(large) > 50


def test_cells_alone_need_no_heading(split):
    images = split.database
    sampler = made(split, angle_deg=360.0, least=1, cell_m=20.0)
    np.testing.assert_array_equal(sampler.kinds >= 0, images.poses.known)
    assert np.isnan(images.poses.heading[sampler.kinds >= 0]).any()


def test_the_loss_of_a_batch_is_that_of_its_group(split):
    sampler, loss = made(split, least=2, size=8), LargeMarginCosine(scale=10.0, margin=0.2)
    batch = sampler.batch(1, 0)
    wanted = BatchImages.of(batch, one_set=True)
    z = torch.nn.functional.normalize(torch.randn(len(wanted), 6, dtype=torch.float64), dim=1)
    head = loss.head(sampler, 6).double()
    expected = 0.0
    unit = torch.nn.functional.normalize(head.weight, dim=1).detach().numpy()
    for image, target in zip(z.numpy()[wanted.right], batch.target, strict=True):
        cosine = [float(image @ unit[c]) for c in batch.classes]
        own = np.exp(10 * (cosine[target] - 0.2))
        expected -= np.log(own / (own + sum(np.exp(10 * c) for k, c in enumerate(cosine) if k != target)))
    got = wanted.loss(loss.bound(head), z)
    assert got.item() == pytest.approx(expected, rel=1e-9)
    got.backward()
    assert (head.weight.grad[np.setdiff1d(np.arange(sampler.classes), batch.classes)] == 0).all()


def test_too_few_images_and_uneven_turns_are_refused(split):
    with pytest.raises(InputError, match=r"no place has 4000 map images.*set batches\.least=\d+ or less") as caught:
        made(split, least=4000)
    most = int(str(caught.value).split("least=")[1].split()[0])
    assert made(split, least=most).classes >= 1
    blind = replace(split.database, poses=Poses(split.database.poses.xy, np.full(3000, np.nan)))
    with pytest.raises(InputError, match=r"none of 3000 map images has a place and a heading.*batches\.angle_deg=360"):
        made(Split(blind, blind))
    with pytest.raises(InputError, match="angle_deg is 50"):
        Classes(angle_deg=50.0)

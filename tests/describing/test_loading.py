"""Batches of images: in order, bounded, the same whatever the number of workers, bad files dealt with by rule."""

import numpy as np
import pytest
import torch

from covis.core.errors import InputError
from covis.describing.loading import image_batches, joint_batches
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.decoding import decode
from layouts import builders

SIZE = (24, 32)


@pytest.fixture
def images(tmp_path):
    names = [f"{i:02d}.jpg" for i in range(10)]
    for i, name in enumerate(names):
        builders.image(tmp_path / name, seed=i)
    return ImageSet.of(tmp_path, names, Poses(np.zeros((10, 2)), np.zeros(10)))


def spoil(images, *ids):
    for i in ids:
        images.path(i).write_bytes(b"\xff\xd8\xff spoilt")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_with_the_decoders_pixels(images, workers):
    seen = []
    for ids, batch in image_batches(images, [7, 1, 1, 9, 4], SIZE, 2, workers):
        assert batch.dtype == torch.uint8
        assert batch.shape == (len(ids), 3, *SIZE)
        assert batch.is_contiguous(memory_format=torch.channels_last)
        for i, pixels in zip(ids, batch, strict=True):
            assert np.array_equal(pixels.permute(1, 2, 0).numpy(), decode(images.path(int(i)), SIZE))
        seen += ids.tolist()
    assert seen == [7, 1, 1, 9, 4]


def test_all_images_without_ids(images):
    assert [len(ids) for ids, _ in image_batches(images, None, SIZE, 4)] == [4, 4, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping_leaves_bad_files_out_and_lists_them(images, workers):
    spoil(images, 2, 3)
    images.path(5).unlink()
    bad = []
    ids = np.concatenate([ids for ids, _ in image_batches(images, None, SIZE, 2, workers, rejects=bad)])
    assert ids.tolist() == [0, 1, 4, 6, 7, 8, 9]
    assert [(b.id, b.reason) for b in bad] == [(2, bad[0].reason), (3, bad[1].reason), (5, "missing")]
    assert bad[0].reason in ("corrupt", "truncated", "not-an-image")


def test_replacing_is_the_same_for_any_workers_order_and_batch_size(images):
    spoil(images, 2, 3)

    def run(order, batch_size, workers, seed=0):
        batches = image_batches(images, order, SIZE, batch_size, workers, on_reject="replace", seed=seed)
        return dict(zip(order, np.concatenate([ids for ids, _ in batches]).tolist(), strict=True))

    first = run(list(range(10)), 4, 0)
    assert first == run(list(range(10)), 3, 2)
    assert first == run(list(range(9, -1, -1)), 4, 0)
    assert first[2] not in (2, 3)
    assert all(first[i] == i for i in range(10) if i not in (2, 3))
    others = {run(list(range(10)), 4, 0, seed)[2] for seed in range(12)}
    assert len(others) > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_raising_is_one_line_without_a_workers_traceback(images, workers):
    spoil(images, 0)
    with pytest.raises(InputError) as caught:
        list(image_batches(images, [0], SIZE, 1, workers, on_reject="raise"))
    assert "\n" not in str(caught.value)
    assert "00.jpg" in str(caught.value)


def test_a_set_without_any_good_image_ends_the_run(images):
    spoil(images, *range(10))
    with pytest.raises(InputError, match="replacements cannot be read"):
        list(image_batches(images, [0], SIZE, 1, on_reject="replace"))
    assert all(len(ids) == 0 for ids, _ in image_batches(images, None, SIZE, 5))


@pytest.mark.parametrize("workers", [0, 2])
def test_pairs_of_two_sets_stay_aligned(images, workers):
    queries = images.subset([0, 1, 2])
    requests = [([0, 1], [9, 8]), ([2], [7])]
    batches = list(joint_batches((queries, images), requests, SIZE, workers))
    assert [(q.ids.tolist(), d.ids.tolist()) for q, d in batches] == requests
    assert torch.equal(batches[0][1].images[1].permute(1, 2, 0), torch.from_numpy(decode(images.path(8), SIZE).copy()))


def test_requests_are_taken_lazily(images):
    taken = []

    def requests():
        for i in range(10):
            taken.append(i)
            yield ([i],)

    stream = joint_batches((images,), requests(), SIZE, workers=2)
    next(stream)
    assert len(taken) <= 2 * 2 + 1
    stream.close()

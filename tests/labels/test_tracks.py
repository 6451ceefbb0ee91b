"""Labels by shared points, against COLMAP's own model and plain sets."""

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.labels import TrackOverlap
from covis.labels.tracks import read_tracks


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pycolmap = pytest.importorskip("pycolmap", reason="COLMAP's own library writes the model")
    pycolmap.set_random_seed(5)
    options = pycolmap.SyntheticDatasetOptions(
        num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=9, num_points3D=150
    )
    options.track_length = 3
    made = pycolmap.synthesize_dataset(options)
    folder = tmp_path_factory.mktemp("model")
    made.write_binary(folder)
    return made, folder


@pytest.mark.parametrize("measure", ["overlap", "iou"])
def test_shared_points_divided_by_points(model, measure):
    from covis.reading.sources import read_posed

    made, folder = model
    images = read_posed(folder)
    graph = TrackOverlap(str(folder), measure=measure)(images, images)
    seen = {i.name: {p.point3D_id for p in i.points2D if p.has_point3D()} for i in made.images.values()}
    for a in range(len(images)):
        for b in range(len(images)):
            x, y = seen[images.name(a)], seen[images.name(b)]
            whole = {"overlap": min(len(x), len(y)), "iou": len(x | y)}[measure]
            expected = 0.0 if a == b else len(x & y) / whole
            assert graph.lookup(a, b) == pytest.approx(expected, abs=1e-6)
    assert graph.facts["tracks"]["points"] == 150


def test_other_images_are_told(model):
    _, folder = model
    from covis.images import ImageSet
    from covis.poses import Poses

    other = ImageSet.of(".", ["no.jpg"], Poses(np.zeros((1, 2)), np.zeros(1)))
    with pytest.raises(InputError, match=r"1 of 1 images are not in the model.*first: no\.jpg"):
        read_tracks(folder).of(other)

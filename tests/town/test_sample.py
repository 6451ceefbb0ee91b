"""Sample photos: walks with position, heading and time in EXIF, which are read back as they were rendered."""

import numpy as np
import pytest

import covis
from covis.core.errors import InputError
from covis.town.config import TownConfig
from covis.town.sample import WALKS, write_sample
from covis.town.view import View


def test_sample_photos_are_read_with_their_poses(tmp_path):
    config = TownConfig.small()
    counts = write_sample(tmp_path / "town", config)
    images = covis.open_images(tmp_path / "town" / "photos")
    assert len(images) == counts["photos"]
    assert counts["new"] == len(list((tmp_path / "town" / "new").glob("*.jpg"))) > 0
    drives = [View.of(config, "test", walk.condition).drive for walk in WALKS[:-1]]
    summer = np.array([name.startswith(b"summer") for name in images.names.tolist()])
    found, true = images.poses.xy[summer], drives[0].position[:, :2]
    gaps = [np.linalg.norm(xy[:, None] - xy[None], axis=-1) for xy in (found, true)]
    np.testing.assert_allclose(*gaps, atol=0.05)
    forward = drives[0].rotation[:, :, 2]
    turn = images.poses.heading[summer] - np.degrees(np.arctan2(forward[:, 0], forward[:, 1]))
    assert np.abs((turn + 180) % 360 - 180).max() < 0.1


def test_sample_keeps_what_is_there_and_refuses_other_folders(tmp_path):
    write_sample(tmp_path / "town", TownConfig.small())
    file = next((tmp_path / "town" / "new").glob("*.jpg"))
    file.write_bytes(b"kept")
    write_sample(tmp_path / "town", TownConfig.small())
    assert file.read_bytes() == b"kept"
    (tmp_path / "town" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="other files"):
        write_sample(tmp_path / "town", TownConfig.small())

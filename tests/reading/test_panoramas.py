"""Crops of panoramas against a world whose colours are a closed form, and street-level services' metadata."""

import json

import numpy as np
import pytest
from PIL import Image

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.formats.mapillary import read_mapillary
from covis.reading.panoramas import cut, rays_of, read_sphere, view_rotation
from covis.reading.sources import open_images, posed_format


def colour(direction):
    """A smooth colour of each direction (…, 3) in the world."""
    d = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    return np.stack([127 + 110 * d[..., 0], 127 + 110 * d[..., 1], 127 + 110 * d[..., 2]], axis=-1)


def panorama(heading, pitch=0.0, roll=0.0, size=(512, 256)):
    """What a camera at that attitude stores: column by longitude, row by latitude."""
    width, height = size
    longitude = ((np.arange(width) + 0.5) / width - 0.5) * 2 * np.pi
    latitude = ((np.arange(height) + 0.5) / height - 0.5) * np.pi
    lon, lat = np.meshgrid(longitude, latitude)
    ray = np.stack([np.sin(lon) * np.cos(lat), np.sin(lat), np.cos(lon) * np.cos(lat)], axis=-1)
    around = np.radians(roll)
    lean = np.array([[np.cos(around), -np.sin(around), 0], [np.sin(around), np.cos(around), 0], [0, 0, 1]])
    return colour(ray @ lean.T @ view_rotation(heading, pitch).T).round().astype(np.uint8)


def save(path, pixels, **tags):
    inside = " ".join(f'GPano:{key}="{value}"' for key, value in tags.items())
    xmp = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description GPano:ProjectionType="equirectangular" {inside}/></x:xmpmeta>'
    Image.fromarray(pixels).save(path, quality=98, subsampling=0, xmp=xmp.encode())


@pytest.mark.parametrize("attitude", [(0, 0, 0), (75, 0, 0), (300, 12, 0), (40, -8, 15)])
def test_crops_show_what_lies_at_their_heading(tmp_path, attitude):
    heading, pitch, roll = attitude
    tags = {"PoseHeadingDegrees": heading, "PosePitchDegrees": pitch, "PoseRollDegrees": roll}
    save(tmp_path / "p.jpg", panorama(*attitude), **tags)
    given = ImageSet.of(tmp_path, ["p.jpg"], Poses(np.array([[5.0, 6.0]]), np.array([np.nan]), np.array([2.0])))
    crops = cut(given, tmp_path / "crops", count=3, fov_deg=80, size=(64, 48))
    np.testing.assert_allclose(crops.poses.heading, [(heading + t) % 360 for t in (0, 120, 240)])
    np.testing.assert_array_equal(crops.poses.centre, [[5.0, 6.0, 2.0]] * 3)
    for i in range(3):
        with Image.open(crops.path(i)) as image:
            pixels = np.asarray(image).astype(float)
        expected = colour(rays_of((64, 48), 80) @ crops.poses.rotation[i].T)
        assert np.abs(pixels - expected).max() < 6
    fx = crops.intrinsics[0, 0]
    assert 2 * np.degrees(np.arctan(32 / fx)) == pytest.approx(80)


def test_a_cropped_panorama_and_a_second_run(tmp_path):
    whole = panorama(90)
    save(
        tmp_path / "p.jpg", whole[64:192, 128:384], PoseHeadingDegrees=90, FullPanoWidthPixels=512,
        FullPanoHeightPixels=256, CroppedAreaLeftPixels=128, CroppedAreaTopPixels=64,
    )  # fmt: skip
    assert read_sphere(tmp_path / "p.jpg").left == 128
    given = ImageSet.of(tmp_path, ["p.jpg"], Poses(np.zeros((1, 2)), np.array([np.nan])))
    crops = cut(given, tmp_path / "crops", count=1, fov_deg=60, size=(32, 24))
    with Image.open(crops.path(0)) as image:
        expected = colour(rays_of((32, 24), 60) @ view_rotation(90).T)
        assert np.abs(np.asarray(image) - expected).max() < 6
    before = crops.path(0).stat().st_mtime_ns
    again = cut(given, tmp_path / "crops", count=1, fov_deg=60, size=(32, 24))
    assert again.path(0).stat().st_mtime_ns == before
    with pytest.raises(InputError, match="--crop-fov 200"):
        cut(given, tmp_path / "other", fov_deg=200)


def photos(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(folder / name)


def test_mapillary_tools_descriptions_written_by_it(tmp_path):
    types = pytest.importorskip("mapillary_tools.types", reason="writes its own descriptions")
    description = pytest.importorskip("mapillary_tools.serializer.description")
    photos(tmp_path, ["walk/a.jpg", "walk/b.jpg", "walk/c.jpg"])
    rows = [
        types.ImageMetadata(
            filename=tmp_path / "walk" / f"{name}.jpg", time=1714566605.25 + i, lat=52.5 + i * 1e-3, lon=13.4, alt=30.0 + i,
            angle=10.0 * i, MAPSequenceUUID="seq", MAPDeviceMake="x",
        )
        for i, name in enumerate("ab")
    ]  # fmt: skip
    text = description.DescriptionJSONSerializer.serialize(rows)
    (tmp_path / "mapillary_image_description.json").write_bytes(text)
    images = read_mapillary(tmp_path)
    assert [images.name(i) for i in (0, 1)] == ["walk/a.jpg", "walk/b.jpg"]
    np.testing.assert_allclose(images.poses.latlon(), [[52.5, 13.4], [52.501, 13.4]], atol=1e-7)
    np.testing.assert_allclose(images.poses.z, [30.0, 31.0], atol=1e-3)
    assert images.group_names == ("seq",)
    assert images.columns["time"][0].startswith("2024-05-01T12:30:05.25")
    np.testing.assert_allclose((images.poses.heading + 180) % 360 - 180, [0.0, 10.0], atol=1e-3)


MAPILLARY = {
    "data": [
        {
            "id": "498763468214164", "geometry": {"type": "Point", "coordinates": [13.4, 52.5]},
            "computed_geometry": {"type": "Point", "coordinates": [13.41, 52.51]}, "compass_angle": 90.0,
            "computed_compass_angle": 95.0, "captured_at": 1714566605250, "sequence": "s1", "is_pano": False,
        },
        {
            "id": "2", "geometry": {"type": "Point", "coordinates": [13.42, 52.52]}, "compass_angle": 180.0,
            "captured_at": 1714566606250, "sequence": "s1", "is_pano": True,
        },
    ]
}  # fmt: skip


def test_answers_of_mapillarys_api(tmp_path):
    photos(tmp_path, ["498763468214164.jpg", "2.jpg"])
    (tmp_path / "metadata.json").write_text(json.dumps(MAPILLARY))
    assert posed_format(tmp_path) == "mapillary"
    images = open_images(tmp_path)
    images = images.subset(np.argsort(images.names))
    np.testing.assert_allclose(images.poses.latlon(), [[52.52, 13.42], [52.51, 13.41]], atol=1e-7)
    np.testing.assert_allclose(images.poses.heading, [180, 95], atol=0.1)  # grid north is not quite true north
    assert images.columns["is_panorama"].tolist() == [True, False]


def test_missing_photos_and_other_folders(tmp_path, capsys):
    assert posed_format(tmp_path) is None
    (tmp_path / "metadata.json").write_text(json.dumps(MAPILLARY))
    with pytest.raises(InputError, match="none of the 2 photos"):
        read_mapillary(tmp_path)
    photos(tmp_path, ["2.jpg", "other.jpg"])
    assert len(read_mapillary(tmp_path)) == 1
    assert "1 photos are not in metadata.json" in capsys.readouterr().err

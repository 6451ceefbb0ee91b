"""The quick look before long work, and the limits that stop it."""

import csv

import numpy as np
import pytest

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.decoding import Rejected, write_rejects
from covis.reading.screening import check_limits, look, screen
from layouts import builders


def make(tmp_path, n=100):
    data = builders.image(tmp_path / "0.jpg").read_bytes()
    for i in range(n):
        (tmp_path / f"{i}.jpg").write_bytes(data)
    return ImageSet.of(tmp_path, [f"{i}.jpg" for i in range(n)], Poses(np.zeros((n, 2)), np.zeros(n)))


def test_a_few_bad_files_are_left_out_and_named(tmp_path):
    images = make(tmp_path)
    images.path(3).write_bytes(b"")
    images.path(4).write_bytes(images.path(5).read_bytes()[:-200])
    images.path(7).write_text("text")
    images.path(8).unlink()
    good, rejects = screen(images)
    assert good.tolist() == [i for i in range(100) if i not in (3, 4, 7, 8)]
    assert [r.reason for r in rejects] == ["empty", rejects[1].reason, "not-an-image", "missing"]
    assert rejects[1].reason in ("truncated", "corrupt")
    assert screen(images, [3, *range(10, 60)]).ids.tolist() == list(range(10, 60))


def test_an_odd_ending_is_not_damage(tmp_path):
    images = make(tmp_path, 3)
    images.path(1).write_bytes(images.path(1).read_bytes() + b"trailing camera data" * 20)
    builders.image(tmp_path / "b.png")
    assert look(images.path(1)) is None
    assert look(tmp_path / "b.png") is None


def test_more_than_one_percent_absent_is_an_error(tmp_path):
    images = make(tmp_path)
    images.path(1).unlink()
    assert len(screen(images).ids) == 99
    images.path(2).unlink()
    with pytest.raises(InputError, match=r"2 of 100 images are not under .* \(first: 1\.jpg\); more than 1%"):
        screen(images)


def test_more_than_five_percent_bad_is_an_error(tmp_path):
    images = make(tmp_path)
    for i in range(6):
        images.path(i).write_bytes(b"")
    with pytest.raises(InputError, match=r"6 of 100 images .* \(6 empty; first: 0\.jpg\); more than 5%"):
        screen(images)
    images.path(0).write_bytes(images.path(50).read_bytes())
    assert len(screen(images).ids) == 95


def test_limits_count_absent_and_bad_apart(tmp_path):
    rejects = [Rejected(f"{i}", "missing", "") for i in range(10)] + [Rejected(f"b{i}", "empty", "") for i in range(50)]
    check_limits(rejects, 1000, tmp_path)
    with pytest.raises(InputError, match="11 of 1000"):
        check_limits([*rejects, Rejected("x", "missing", "")], 1000, tmp_path)


def test_rejects_are_a_csv_that_keeps_odd_names(tmp_path):
    path = tmp_path / "rejects.csv"
    write_rejects(path, [Rejected('caf\udce9, "x".jpg', "corrupt", "a, b")])
    with path.open(newline="", errors="surrogateescape") as handle:
        rows = list(csv.DictReader(handle))
    assert rows == [{"image": 'caf\udce9, "x".jpg', "reason": "corrupt", "detail": "a, b"}]
    assert [p.name for p in tmp_path.iterdir()] == ["rejects.csv"]

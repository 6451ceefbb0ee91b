"""Every reader on a miniature of its official layout, oddities included."""

import numpy as np
import pytest

from covis import datasets
from covis.core.errors import InputError
from covis.datasets import cmu, msls, robotcar, tb_places
from covis.labels.exchange import Labels, open_labels, save_labels
from covis.labels.released import read_released, write_released
from covis.poses import angle_between
from layouts import builders

FIRST_SPLIT = {"msls": "val", "7scenes": "stairs", "tb_places": "w17_w18"}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    root = tmp_path_factory.mktemp("layouts")
    return {name: build(root / name) for name, build in builders.ALL.items()}


@pytest.mark.parametrize("name", builders.ALL)
def test_every_named_image_is_on_disk_and_nothing_was_moved(layouts, name):
    before = sorted(p for p in layouts[name].rglob("*"))
    split = FIRST_SPLIT.get(name, datasets.DATASETS[name].splits[0])
    queries, database = datasets.load(name, layouts[name], split)
    for images in (queries, database):
        missing = [images.name(i) for i in range(len(images)) if not images.path(i).is_file()]
        assert len(images) > 0
        assert not missing
    assert sorted(p for p in layouts[name].rglob("*")) == before


@pytest.mark.parametrize("name", list(builders.ALL))
def test_an_unknown_split_names_the_nearest(layouts, name):
    with pytest.raises(InputError, match="unknown split"):
        datasets.load(name, layouts[name], "tets")


@pytest.mark.parametrize("name", list(builders.ALL))
def test_an_empty_folder_is_an_error_that_says_what_is_missing(tmp_path, name):
    split = FIRST_SPLIT.get(name, datasets.DATASETS[name].splits[0])
    with pytest.raises(InputError, match=r"does not exist|lacks|no query|has no"):
        datasets.load(name, tmp_path, split)


class TestMsls:
    def test_columns_and_groups(self, layouts):
        queries, database = datasets.load("msls", layouts["msls"], "val")
        assert (len(queries), len(database)) == (16, 22)  # one panorama a city is left out of the map
        assert queries.group_names == ("cph", "sf")
        expected = {"key", "pano", "row", "rows", *msls.SUBTASKS}
        assert expected <= set(queries.columns)
        assert not {"captured_at", "unique_cluster", "view_direction"} & set(queries.columns)  # nothing needs them
        assert not database.columns["pano"].any()
        assert queries.name(0) == "train_val/cph/query/images/cphq0000_-aB.jpg"
        assert queries.columns["s2w"][:2].tolist() == [True, False]

    def test_positions_are_the_released_ones(self, layouts):
        queries, database = msls.read_cities(layouts["msls"], ["cph"])
        lines = (layouts["msls"] / "train_val/cph/query/postprocessed.csv").read_text().splitlines()[1:]
        released = np.array([[float(c) for c in line.split(",")[2:4]] for line in lines])
        assert np.array_equal(queries.poses.xy, released)
        assert len(database) == 11  # the last of twelve is a panorama
        assert not database.columns["pano"].any()

    def test_headings_are_turned_to_grid_north_and_minus_one_is_unknown(self, layouts):
        queries, _ = msls.read_cities(layouts["msls"], ["cph"])
        assert np.isnan(queries.poses.heading[1])
        convergence = (12.57 - 15.0) * np.sin(np.radians(55.67))  # zone 33, whose middle is 15° E
        assert (queries.columns["ca"] - queries.poses.heading)[0] == pytest.approx(convergence, abs=0.01)

    def test_a_city_across_a_zone_border_becomes_one_piece(self, layouts):
        _, database = msls.read_cities(layouts["msls"], ["london"])
        steps = np.hypot(*np.diff(database.poses.xy, axis=0).T)
        assert steps == pytest.approx(np.full(len(steps), 30.0), abs=0.2)
        raw = builders.utm(database.columns["lat"], database.columns["lon"])
        assert np.hypot(*np.diff(raw, axis=0).T).max() > 300_000  # the trap is in the layout

    def test_crlf(self, layouts):
        queries, _ = msls.read_cities(layouts["msls"], ["amman"])
        assert queries.columns["key"][0] == b"ammaq0000_-aB"
        assert queries.columns["pano"].dtype == bool

    def test_the_test_cities_have_no_positions(self, layouts):
        queries, database = datasets.load("msls", layouts["msls"], "test")
        assert not queries.poses.known.any()
        assert np.isnan(database.poses.heading).all()
        assert queries.columns["all"].all()
        assert queries.name(0).startswith("test/")

    def test_training_takes_the_cities_there_are_and_says_which_are_missing(self, layouts, capsys):
        queries, _ = datasets.load("msls", layouts["msls"], "train")
        assert queries.group_names == ("amman", "london")
        assert "lacks 20 of 22 cities" in capsys.readouterr().err

    def test_a_benchmark_needs_all_its_cities(self, tmp_path):
        builders.msls(tmp_path, cities=("cph",), images=False)
        with pytest.raises(InputError, match=r"missing: sf"):
            datasets.load("msls", tmp_path, "val")

    def test_one_city_by_name(self, layouts):
        assert datasets.load("msls", layouts["msls"], "sf").queries.group_names == ("sf",)

    def test_files_of_two_releases_are_refused(self, tmp_path):
        builders.msls(tmp_path, cities=("cph", "sf"), images=False)
        file = tmp_path / "train_val/cph/query/raw.csv"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]) + "\n")
        with pytest.raises(InputError, match=r"raw.csv: row 2 is cphq0001.*seq_info.csv has cphq0000"):
            datasets.load("msls", tmp_path, "val")
        file.write_text("\n".join(lines[:-1]) + "\n")
        with pytest.raises(InputError, match=r"raw\.csv"):
            datasets.load("msls", tmp_path, "val")

    def test_unneeded_columns_may_hold_anything(self, tmp_path):
        builders.msls(tmp_path, cities=("cph", "sf"), images=False)
        for name, column in (("raw.csv", "captured_at"), ("postprocessed.csv", "unique_cluster")):
            file = tmp_path / "train_val/cph/query" / name
            head, *lines = (line.split(",") for line in file.read_text().splitlines())
            for line in lines:
                line[head.index(column)] = "a word"
            file.write_text("\n".join(map(",".join, [head, *lines])) + "\n")
        assert len(datasets.load("msls", tmp_path, "val").queries) == 16

    def test_released_labels_count_panoramas(self, tmp_path):
        builders.msls(tmp_path, cities=("cph", "sf"), images=False)
        dense = {city: builders.msls_labels(tmp_path, city, seed=i) for i, city in enumerate(("cph", "sf"))}
        split = datasets.load("msls", tmp_path, "val")
        graph = read_released(tmp_path, *split)
        assert graph.shape == (16, 22)
        assert graph.facts["measure"] == "released-fov"
        assert np.array_equal(graph.to_scipy().toarray()[:8, :11], dense["cph"][:, :11])
        assert np.array_equal(graph.to_scipy().toarray()[8:, 11:], dense["sf"][:, :11])
        assert not graph.to_scipy().toarray()[:8, 11:].any()
        city = datasets.load("msls", tmp_path, "cph")
        one = read_released(tmp_path / "train_val" / "cph_gt.h5", *city)
        assert np.array_equal(one.to_scipy().toarray(), dense["cph"][:, :11])

    def test_released_labels_there_and_back(self, tmp_path):
        import h5py

        builders.msls(tmp_path, cities=("cph", "sf"), images=False)
        dense = {city: builders.msls_labels(tmp_path, city, seed=i) for i, city in enumerate(("cph", "sf"))}
        split = datasets.load("msls", tmp_path, "val")
        save_labels(Labels(read_released(tmp_path, *split), *split), tmp_path / "graph")
        files = write_released(open_labels(tmp_path / "graph"), tmp_path / "out")
        assert [f.name for f in files] == ["cph_gt.h5", "sf_gt.h5"]
        for city, expected in dense.items():
            without = expected.copy()
            without[:, -1] = 0  # the panorama's column stays, empty
            with h5py.File(tmp_path / "out" / f"{city}_gt.h5") as file:
                assert np.array_equal(file["fov"][:], without)
                assert np.array_equal(file["sim"][:], without >= 0.5)
        with pytest.raises(InputError, match="2 groups; give the folder"):
            write_released(open_labels(tmp_path / "graph"), tmp_path / "out.h5")

    def test_released_labels_of_another_release_are_refused(self, tmp_path):
        builders.msls(tmp_path, cities=("cph", "sf"), images=False)
        for city in ("cph", "sf"):
            builders.msls_labels(tmp_path, city)
        builders.msls(tmp_path, cities=("cph", "sf"), queries=9, database=13, images=False)
        split = datasets.load("msls", tmp_path, "val")
        with pytest.raises(InputError, match="is of 8 × 12 images; the lists have 9 × 13 lines"):
            read_released(tmp_path, *split)
        with pytest.raises(InputError, match="2 groups; give the folder"):
            read_released(tmp_path / "train_val" / "cph_gt.h5", *split)


class TestPittsburgh:
    def test_names_positions_and_cutouts(self, layouts):
        queries, database = datasets.load("pitts30k", layouts["pitts30k"], "test")
        assert (len(queries), len(database)) == (5, 15)
        assert queries.name(0) == "queries_real/002/000010_pitch1_yaw1.jpg"
        assert database.columns["yaw_deg"][:3].tolist() == [0, 30, 60]
        assert database.columns["panorama"][0] == "000010"
        assert np.hypot(*(queries.poses.xy[0] - database.poses.xy[0])) == pytest.approx(6.0)
        assert np.isnan(database.poses.heading).all()  # a panorama's own orientation is not published
        assert queries.poses.latlon()[0] == pytest.approx([40.4, -80.0], abs=0.1)

    def test_a_missing_file_says_where_it_belongs(self, tmp_path):
        with pytest.raises(InputError, match=r"pitts250k_test.mat does not exist; unpack"):
            datasets.load("pitts250k", tmp_path, "test")

    def test_a_file_that_is_no_matlab_file(self, tmp_path):
        (tmp_path / "pitts30k_test.mat").write_text("not MATLAB")
        with pytest.raises(InputError, match="not a MATLAB file"):
            datasets.load("pitts30k", tmp_path, "test")


class TestTokyo:
    def test_names_say_jpg_files_are_png(self, layouts):
        queries, database = datasets.load("tokyo247", layouts["tokyo247"], "test")
        assert database.name(0).endswith("_012_000.png")
        assert queries.name(0) == "247query_subset_v2/00000.jpg"
        panoramas, counts = np.unique(database.columns["panorama"], return_counts=True)
        assert len(panoramas) == 3
        assert (counts == 12).all()
        assert database.columns["yaw_deg"][:12].tolist() == list(range(0, 360, 30))

    def test_fields_are_read_by_name_where_time_stamps_shift_them(self, layouts):
        queries, database = datasets.load("tokyotm", layouts["tokyotm"], "val")
        assert set(database.columns["time_stamp"].tolist()) == {200901, 201304}
        assert queries.poses.xy[0].tolist() == [385000.0, 3946000.0]
        assert len(queries.columns["time_stamp"]) == len(queries)

    def test_names_stay_as_listed_where_no_image_is(self, tmp_path):
        builders.tokyo247(tmp_path, images=False)
        assert datasets.load("tokyo247", tmp_path, "test").database.name(0).endswith("_012_000.jpg")


class TestRobotCar:
    def test_poses_of_map_and_queries(self, layouts):
        queries, database = datasets.load("robotcar_v2", layouts["robotcar_v2"], "train")
        assert len(database) == 18
        assert set(database.columns["camera"]) == {"left", "rear", "right"}
        assert queries.name(0).startswith("images/dawn/rear/")
        assert queries.name(0).endswith(".jpg")
        assert set(queries.columns["condition"]) == {"dawn", "night-rain"}
        rear = database.subset(database.columns["camera"] == "rear")
        assert rear.poses.heading[0] == pytest.approx(180.0)
        assert queries.poses.heading[0] == pytest.approx(181.0)
        assert rear.poses.centre[1] == pytest.approx([10.0, 0.0, 1.5])
        assert queries.poses.centre[1] == pytest.approx([10.2, 0.1, 1.5])
        relative = rear.poses.rotation[0].T @ queries.poses.rotation[0]
        assert np.degrees(np.arccos((np.trace(relative) - 1) / 2)) == pytest.approx(1.0)
        assert rear.intrinsics[0].tolist() == [400.0, 400.0, 500.1, 511.5, 1024.0, 1024.0]

    @pytest.mark.parametrize("named", [True, False])
    def test_hidden_queries_get_their_condition_from_the_list_or_the_disk(self, tmp_path, named):
        builders.robotcar(tmp_path, named_conditions=named)
        queries = robotcar.unposed_queries(tmp_path)
        assert not queries.poses.known.any()
        assert queries.poses.rotation is None
        assert set(queries.columns["condition"]) == {"dawn", "night-rain"}
        assert all(queries.path(i).is_file() for i in range(len(queries)))

    def test_a_short_line_is_named(self, tmp_path):
        builders.robotcar(tmp_path, images=False)
        file = tmp_path / "robotcar_v2_train.txt"
        file.write_text(file.read_text() + "dawn/rear/1.png 1 2 3\n")
        with pytest.raises(InputError, match="line 7 has 3 numbers"):
            datasets.load("robotcar_v2", tmp_path, "train")

    def test_a_cut_model_is_named(self, tmp_path):
        builders.robotcar(tmp_path, images=False)
        file = tmp_path / "3D-models/all-merged/all.nvm"
        file.write_text("\n".join(file.read_text().splitlines()[:9]))
        with pytest.raises(InputError, match=r"ends after \d+ of 18 cameras"):
            datasets.load("robotcar_v2", tmp_path, "reference")


class TestCmu:
    def test_slices_conditions_and_poses(self, layouts):
        queries, database = datasets.load("cmu_extended", layouts["cmu_extended"], "test")
        assert len(queries.group_names) == 14
        assert set(queries.columns["slice"]) == set(cmu.TEST_SLICES)
        assert set(queries.columns["environment"]) == {"urban", "suburban", "park"}
        assert queries.columns["condition"][:2].tolist() == ["Sunny + Foliage", "Low Sun + No Foliage + Snow"]
        assert set(database.columns["condition"]) == {"Sunny + No Foliage"}
        assert database.poses.heading[:2] == pytest.approx([315.0, 45.0])
        assert database.poses.centre[1] == pytest.approx([5.0, 200.0, 1.5])
        assert queries.poses.known[:4].tolist() == [True, True, False, False]
        assert np.isnan(queries.poses.rotation[2]).all()
        assert not np.isnan(queries.poses.rotation[0]).any()
        assert queries.intrinsics[1].tolist() == [873.38, 876.48, 529.32, 397.27, 1024.0, 768.0]

    def test_one_slice_and_a_missing_one(self, layouts, tmp_path):
        assert set(datasets.load("cmu_extended", layouts["cmu_extended"], "slice13").queries.columns["slice"]) == {13}
        builders.cmu(tmp_path, slices=(2, 3), images=False)
        with pytest.raises(InputError, match=r"lacks slice4, slice5.*unpack"):
            datasets.load("cmu_extended", tmp_path, "test")

    def test_environments_follow_the_published_slices(self):
        found = [cmu.environment_of(n) for n in (2, 8, 9, 17, 18, 25)]
        assert found == ["urban", "urban", "suburban", "suburban", "park", "park"]


class TestTbPlaces:
    def test_poses(self, layouts):
        queries, database = datasets.load("tb_places", layouts["tb_places"], "w17_w18")
        assert (len(queries), len(database)) == (7, 6)
        assert database.poses.heading[:2] == pytest.approx([90.0, 87.0])
        assert database.poses.xy[1] == pytest.approx([0.5, 1.0])
        ahead = database.poses.rotation[0] @ [0.0, 0.0, 1.0]
        down = database.poses.rotation[0] @ [0.0, 1.0, 0.0]
        assert ahead == pytest.approx([1.0, 0.0, 0.0], abs=1e-9)
        assert down == pytest.approx([0.0, 0.0, -1.0], abs=1e-9)

    def test_the_halves_of_w18(self, layouts):
        queries, database = datasets.load("tb_places", layouts["tb_places"], "w18")
        assert (len(queries), len(database)) == (4, 3)

    @pytest.mark.parametrize("key", ["sim", "fov"])
    def test_condensed_labels(self, layouts, key):
        import h5py
        from scipy.spatial.distance import squareform

        images = tb_places.read_set(layouts["tb_places"], "W17")
        graph = read_released(layouts["tb_places"] / "W17_similarity.h5", images, images, key)
        with h5py.File(layouts["tb_places"] / "W17_similarity.h5") as handle:
            expected = squareform(np.asarray(handle[key], np.float64).ravel())
        assert np.allclose(graph.to_scipy().toarray(), expected)
        assert graph.facts["one_set"]

    def test_pair_labels(self, layouts):
        split = datasets.load("tb_places", layouts["tb_places"], "w17_w18")
        graph = read_released(layouts["tb_places"] / "W18_W17_gt.h5", *split, "sim")
        assert graph.shape == (7, 6)
        assert graph.lookup(0, 4) == 1
        assert graph.lookup(0, 1) == 0

    def test_labels_of_another_set_are_refused(self, layouts):
        images = tb_places.read_set(layouts["tb_places"], "W18")
        with pytest.raises(InputError, match="is of 6 × 6 images; these are 7 × 7"):
            read_released(layouts["tb_places"] / "W17_similarity.h5", images, images, "sim")


class TestSevenScenes:
    def test_frames_poses_and_depth(self, layouts):
        queries, database = datasets.load("7scenes", layouts["7scenes"], "stairs")
        assert (len(queries), len(database)) == (4, 4)
        assert queries.name(0) == "stairs/seq-02/frame-000000.color.png"
        depth = layouts["7scenes"] / queries.columns["depth"][0].decode()
        assert depth.name == "frame-000000.depth.png"
        assert depth.is_file()
        # the file's x is the south of the ground axes
        assert database.poses.rotation[1][1, 2] == pytest.approx(-np.sin(np.radians(5.0)), abs=1e-7)
        assert np.linalg.norm(queries.poses.centre[1] - database.poses.centre[0]) == pytest.approx(np.hypot(0.05, 0.02))
        assert (queries.poses.z == 0).all()  # y points down, and these cameras are all at y = 0
        assert angle_between(database.poses.heading[0], database.poses.heading[1]) == pytest.approx(4.0, abs=1e-5)
        assert queries.intrinsics[0].tolist() == [525.0, 525.0, 320.0, 240.0, 640.0, 480.0]

    def test_a_training_set_with_itself_and_a_scene_given_directly(self, layouts):
        both = datasets.load("7scenes", layouts["7scenes"] / "stairs", "stairs/train")
        assert both.queries is both.database
        assert both.queries.name(0) == "seq-01/frame-000000.color.png"

    def test_a_cut_pose_and_a_missing_one_are_named(self, tmp_path):
        builders.seven_scenes(tmp_path)
        pose = tmp_path / "stairs/seq-01/frame-000002.pose.txt"
        pose.write_text("1 0 0 0 0 1")
        with pytest.raises(InputError, match=r"frame-000002.pose.txt is not a 4×4 matrix \(6 numbers\)"):
            datasets.load("7scenes", tmp_path, "stairs")
        pose.unlink()
        with pytest.raises(InputError, match=r"frame-000002.pose.txt is missing"):
            datasets.load("7scenes", tmp_path, "stairs")

    def test_real_frames(self, shared_data):
        queries, database = datasets.load("7scenes", shared_data / "7scenes_stairs_sample", "stairs")
        assert len(queries) == len(database) == 6
        assert queries.name(0).endswith(".color.jpg")
        listed = (shared_data / "poses/7scenes/stairs_test.txt").read_text().splitlines()
        assert {line.split()[0].split("/")[0] for line in listed} == {"seq-01", "seq-04"}
        assert set(queries.columns["sequence"].tolist()) == {1, 4}
        assert np.abs(np.linalg.det(database.poses.rotation) - 1).max() < 1e-3


class TestFolders:
    def test_everything_comes_from_the_name(self, layouts):
        queries, database = datasets.load("utm_folders", layouts["utm_folders"], "test")
        assert (len(queries), len(database)) == (4, 8)
        assert np.isnan(queries.poses.heading).all()
        assert queries.columns["note"][0] == "note with space"
        convergence = (-122.4 + 123.0) * np.sin(np.radians(37.79))
        assert (90.0 - database.poses.heading[1]) == pytest.approx(convergence, abs=0.01)
        assert np.sort(queries.poses.latlon()[:, 0]) == pytest.approx(37.79 + 0.0005 * np.arange(4), abs=1e-5)
        assert set(database.columns["panorama"]) == {f"pano{i}" for i in range(4)}
        assert database.columns["time_stamp"][0] == "201909"

    def test_two_zones_become_one_frame(self, tmp_path):
        for lon in (-120.0001, -119.9999):  # zones 10 and 11
            east, north = builders.utm(np.array([37.0]), np.array([lon]))[0]
            zone = 10 if lon < -120 else 11
            for side in ("database", "queries"):
                name = f"@{east:.2f}@{north:.2f}@{zone}@S@37.00000@{lon:.5f}@@@90@@@@@@.jpg"
                builders.image(tmp_path / "images/test" / side / name)
        queries, database = datasets.load("utm_folders", tmp_path, "test")
        assert np.hypot(*np.diff(database.poses.xy, axis=0)[0]) == pytest.approx(17.8, abs=0.2)
        assert queries.poses.frame == database.poses.frame

    def test_a_name_without_a_position_is_named(self, tmp_path):
        for side in ("database", "queries"):
            builders.image(tmp_path / "images/test" / side / "photo.jpg")
        with pytest.raises(InputError, match=r"photo.jpg has no @east@north"):
            datasets.load("utm_folders", tmp_path, "test")

    def test_gsv_lists(self, layouts):
        images = datasets.load("gsv", layouts["gsv"], "train").queries
        assert len(images) == 24
        assert images.group_names == ("Bangkok", "PRS")
        assert len(np.unique(images.columns["place"])) == 6
        paris = images.subset(images.group == 1)
        assert np.abs(paris.poses.xy).max() < 200
        assert paris.poses.heading[0] == pytest.approx(40.0, abs=0.01)

"""Models, stores and matrices on benchmarks, through Python and through the command line."""

import shutil
import zipfile

import numpy as np
import pytest
from walks import registered

from covis import datasets
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber, open_describer
from covis.describing.embedding import embed
from covis.evaluation import Evaluation, load_benchmark
from covis.evaluation.retrieval import rank_descriptors
from covis.evaluation.run import Variants, evaluate_to, evaluations
from covis.evaluation.submissions import keys
from covis.models import ModelConfig, PlaceModel
from covis.search import Consensus
from layouts import builders


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    root = builders.walk_tables(tmp_path_factory.mktemp("walks"), walks=4, photos=12)
    for seed, path in enumerate(sorted(root.glob("images/*.jpg"))):  # all different, so that they span many dims
        builders.image(path, seed=seed)
    with registered():
        yield root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small"
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 48)), seed=0).save(path)
    return path


pytestmark = pytest.mark.usefixtures("cache")


def test_the_command_prints_the_keys_that_programs_rely_on(walks, model, tmp_path, covis):
    code, data, _ = covis("evaluate", model, "walks_west", "--data", walks, "-o", tmp_path / "eval", "--json")
    assert code == 0
    assert {"benchmark", "fingerprint", "queries", "database", "recall"} <= set(data)
    assert {"1", "5", "10"} <= set(data["recall"])
    assert (data["queries"], data["database"]) == (48, 48)
    found = Evaluation.open(tmp_path / "eval")
    assert found.recall == {int(k): v for k, v in data["recall"].items()}


def test_the_same_command_says_that_it_is_done_and_another_is_refused(walks, model, tmp_path, covis):
    command = ("evaluate", model, "walks_west", "--data", walks, "-o", tmp_path / "eval", "--json")
    first = covis(*command)
    again = covis(*command)
    assert "already evaluated" in again[2]
    assert again[1]["recall"] == first[1]["recall"]
    other = tmp_path / "other"
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 48)), seed=1).save(other)
    code, _, err = covis("evaluate", other, "walks_west", "--data", walks, "-o", tmp_path / "eval")
    assert code == 2
    assert "holds another evaluation (subject:" in err


def test_text_names_protocol_counts_and_both_denominators(walks, model, tmp_path, covis):
    table = tmp_path / "photos.csv"
    rows = (walks / "west.csv").read_text().splitlines()
    rows.append("images/west_0_0.jpg,9000,0,0,run000,1,1")
    shutil.copytree(walks / "images", tmp_path / "images")
    table.write_text("\n".join(rows) + "\n")
    code, out, _ = covis("evaluate", model, "table", "--data", table)
    assert code == 0
    assert "48 queries, 49 map images" in out
    assert "1 of 49 queries have no positive and are left out; over the other denominator (49)" in out


def test_one_whitened_size_is_one_evaluation(walks, model, tmp_path, covis):
    target = tmp_path / "eval"
    code, data, _ = covis(
        "evaluate",
        model,
        "walks_west",
        "--data",
        walks,
        "-o",
        target,
        "--whiten",
        8,
        "--fit",
        "train",
        "--json",
    )
    assert code == 0
    assert data["dim"] == 8
    assert data["subject"]["whitening"]["fit"] == "train"
    assert data["subject"]["whitening"]["samples"] == len(datasets.load("walks", walks, "train").queries)
    assert Evaluation.open(target).label == "small, whitened 8 (train)"


def test_a_whitening_learns_from_poses(walks, model, tmp_path, covis):
    given = ("evaluate", model, "walks_west", "--data", walks, "--whiten", "8:graded")
    code, data, _ = covis(*given, "--fit", "train", "-o", tmp_path / "eval", "--json")
    assert code == 0
    whitening = data["subject"]["whitening"]
    assert (whitening["labels"], whitening["total_share"], whitening["exponent"]) == ("graded", 0.1, 2.0)
    assert whitening["pairs"] > 0
    assert Evaluation.open(tmp_path / "eval").label == "small, whitened 8 (train graded)"
    code, _, err = covis(*given, "--fit", "map")
    assert code == 2
    assert "would know their answers; fit on other images (--fit train)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--whiten", "8:soft"], "graded"),
        (["--whiten", 8, "--whiten", "4:graded"], "share their labels"),
    ],
)
def test_contradictory_whitenings_are_told(options, message, walks, model, covis):
    code, _, err = covis("evaluate", model, "walks_west", "--data", walks, *options)
    assert code == 2
    assert message in err


def test_results_are_asked_where_they_were_taken(walks, model, tmp_path, covis):
    given = ("evaluate", model, "walks_west", "--data", walks, "-o", tmp_path / "agreed", "--json")
    code, data, _ = covis(*given, "--rerank", "consensus")
    assert code == 0
    assert data["subject"]["rerank"].items() >= {"name": "consensus", "depth": 20, "angle_deg": 40.0}.items()
    agreed = Evaluation.open(tmp_path / "agreed")
    assert agreed.label == "small, by consensus"
    benchmark = load_benchmark("walks_west", walks)
    found, _ = open_describer(model).describe(benchmark.queries)
    plain = rank_descriptors(found, found, benchmark)
    expected = Consensus(benchmark.database.poses)(plain).ids[:, 0]
    assert agreed.arrays["ids"][:, 0].tolist() == expected.tolist()
    assert (expected != plain.ids[:, 0]).any()
    code, _, err = covis(*given)
    assert code == 2
    assert "holds another evaluation (rerank" in err


def test_a_sweep_scores_every_size_that_the_descriptors_span(walks, model):
    benchmark = load_benchmark("walks_west", walks)
    source = open_describer(model)
    plan = Variants(sizes=(4,), sweep=True)
    dims = [e.subject["whitening"] and e.subject["whitening"]["dim"] for e in evaluations(source, benchmark, plan)]
    assert dims[:3] == [None, 4, 32]
    assert dims[3:] == []


def test_a_sweep_equals_fitting_each_size_alone(walks, model):
    benchmark = load_benchmark("walks_west", walks)
    source = open_describer(model)
    together = {e.figures["dim"]: e.recall for e in evaluations(source, benchmark, Variants((4, 16)))}
    for size in (4, 16):
        (alone,) = evaluations(source, benchmark, Variants((size,)))
        assert alone.recall == together[size]


def test_several_benchmarks_and_a_comparison(walks, model, tmp_path, covis):
    folders = builders.utm_folders(tmp_path / "folders")
    data = ("--data", f"walks={walks}", "--data", f"utm_folders={folders}")
    variants = ("--whiten", "none", "--whiten", 2)
    code, printed, _ = covis(
        "evaluate", model, "walks_west", "folders_val", *data, *variants, "-o", tmp_path / "a", "--json"
    )
    assert code == 0
    full = printed[0]["dim"]
    assert [(r["benchmark"], r["dim"]) for r in printed] == [
        ("walks_west", full), ("walks_west", 2), ("folders_val", full), ("folders_val", 2)
    ]  # fmt: skip
    code, result, _ = covis("compare", tmp_path / "a", "--json")
    assert code == 0
    assert {c["benchmark"] for c in result["comparisons"]} == {"walks_west", "folders_val"}
    code, text, _ = covis("compare", tmp_path / "a")
    assert "whitening.fit" in text


def test_stores_and_matrices_give_the_models_own_figures(walks, model, tmp_path, covis):
    benchmark = load_benchmark("walks_west", walks)
    place = PlaceModel.load(model)
    expected = next(evaluations(ModelDescriber(place), benchmark)).recall
    store = embed(place, benchmark.queries, tmp_path / "store")
    order = np.random.default_rng(0).permutation(len(store))
    np.save(tmp_path / "theirs.npy", 3.0 * np.asarray(store)[order])
    (tmp_path / "theirs.txt").write_bytes(b"\n".join(store.names[order]) + b"\n")
    for source in ("store", "theirs.npy"):
        code, data, _ = covis("evaluate", tmp_path / source, "walks_west", "--data", walks, "--json")
        assert code == 0
        assert {int(k): v for k, v in data["recall"].items()} == expected


def test_a_store_of_other_images_is_refused(walks, model, tmp_path):
    place = PlaceModel.load(model)
    benchmark = load_benchmark("walks_west", walks)
    embed(place, benchmark.queries.subset(np.arange(40)), tmp_path / "store")
    with pytest.raises(InputError, match="lacks 8 of 48 images"):
        list(evaluations(open_describer(tmp_path / "store"), benchmark))


def test_an_unreadable_photo_is_left_out_and_said(walks, model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(walks, copy)
    (copy / "images" / "west_1_3.jpg").write_bytes(b"not a picture")
    evaluation = next(evaluations(open_describer(model), load_benchmark("walks_west", copy)))
    assert evaluation.figures["database"] == 47
    assert "1 images left out: their files cannot be read" in evaluation.figures["notes"]


def test_a_changed_photo_is_embedded_again(walks, model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(walks, copy)
    benchmark = load_benchmark("walks_west", copy)
    before, _ = open_describer(model).describe(benchmark.queries)
    builders.image(copy / benchmark.queries.name(5), seed=99)
    after, _ = open_describer(model).describe(benchmark.queries)
    assert np.flatnonzero(np.abs(before - after).max(axis=1) > 1e-5).tolist() == [5]


def uploaded(facts):
    """The lines of a submission's zip."""
    with zipfile.ZipFile(facts["submission"]) as archive:
        return archive.read("predictions.csv").decode().splitlines()[1:]


def test_hidden_truth_gives_a_submission(model, tmp_path, covis):
    root = builders.msls(tmp_path / "msls", cities=builders.MSLS_TEST, queries=3, database=4)
    command = ("evaluate", model, "msls_test", "--data", root, "-o", tmp_path / "sub", "--json")
    code, data, _ = covis(*command)
    assert code == 0
    assert data["submission"] == str(tmp_path / "sub" / "predictions.zip")
    benchmark = load_benchmark("msls_test", root)
    assert [line.split()[0] for line in uploaded(data)] == keys(benchmark.queries)
    several = ("--whiten", "2", "--whiten", "4")
    code, _, err = covis("evaluate", model, "msls_test", "--data", root, "-o", tmp_path / "two", *several)
    assert code == 2
    assert "one --whiten size at most" in err
    reranked = ("--rerank", "consensus")
    code, other, _ = covis(*command[:-3], "-o", tmp_path / "two", "--json", *reranked)
    assert code == 0
    assert len(uploaded(other)) == len(benchmark.queries)
    assert "the submission already exists" in covis(*command)[2]
    assert covis("evaluate", model, "msls_test", "--data", root)[0] == 2


def test_poses_for_the_localisation_server(model, tmp_path, covis):
    root = builders.robotcar(tmp_path / "robotcar")
    code, data, _ = covis("evaluate", model, "robotcar_v2", "--data", root, "-o", tmp_path / "sub", "--json")
    assert code == 0
    lines = (tmp_path / "sub" / "robotcar_v2.txt").read_text().splitlines()
    assert len(lines) == data["queries"] == 6
    assert all(line.startswith("rear/") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("walks_wets",), "did you mean 'walks_west'"),
        (("walks_west",), "give --data"),
        (("walks_west", "--whiten", "many"), "not a number of dimensions"),
        (("walks_west", "--whiten", "8", "--fit", "query"), "unknown --fit 'query'"),
        (("walks_west", "--whiten", "100000"), "ask for 1 to"),
        (("walks_west", "--rerank", "pathces"), "did you mean 'patches'"),
        (("walks_west", "--rerank", "patches:sift"), "takes no argument"),
        (("walks_west", "--data", "wlaks=/x"), "unknown dataset in --data 'wlaks'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(walks, model, arguments, message, covis):
    given = arguments if "--data" in arguments or arguments == ("walks_west",) else (*arguments, "--data", walks)
    code, _, err = covis("evaluate", model, *given)
    assert code == 2
    assert message in err.strip().splitlines()[-1]


def test_a_missing_model_is_one_line_and_exit_2(walks, tmp_path, covis):
    code, _, err = covis("evaluate", tmp_path / "nothing", "walks_west", "--data", walks)
    assert code == 2
    assert "give a model folder" in err


def test_no_training_split_is_said(walks, model):
    benchmark = load_benchmark("table", walks / "west.csv")
    with pytest.raises(InputError, match="no training split"):
        list(evaluations(open_describer(model), benchmark, Variants((8,), fit="train")))


def test_nothing_is_written_where_nothing_can_be_scored(model, tmp_path, covis):
    builders.image(tmp_path / "a.jpg")
    builders.image(tmp_path / "b.jpg")
    (tmp_path / "far.csv").write_text("image,easting,northing,group\na.jpg,0,0,x\nb.jpg,900,0,y\n")
    code, out, err = covis("evaluate", model, "table", "--data", tmp_path / "far.csv", "-o", tmp_path / "eval")
    assert code == 2
    assert "none of the 2 queries has a relevant map image" in err
    assert out == ""
    assert not (tmp_path / "eval").exists()


def test_an_interrupted_set_of_variants_goes_on(walks, model, tmp_path):
    benchmark, source = load_benchmark("walks_west", walks), open_describer(model)
    plan = Variants((None, 4, 8))
    evaluate_to(source, benchmark, tmp_path / "eval", plan)
    shutil.rmtree(tmp_path / "eval" / "walks_west-whiten8-map")
    kept = (tmp_path / "eval" / "walks_west" / "manifest.json").stat().st_mtime_ns
    assert len(evaluate_to(source, benchmark, tmp_path / "eval", plan)) == 3
    assert (tmp_path / "eval" / "walks_west-whiten8-map").is_dir()
    assert (tmp_path / "eval" / "walks_west" / "manifest.json").stat().st_mtime_ns == kept


def test_whitening_on_all_map_images_uses_them_all(walks, model):
    benchmark, source = load_benchmark("walks_west", walks), open_describer(model)
    [few] = evaluations(source, benchmark, Variants((2,), fit_images=10))
    [every] = evaluations(source, benchmark, Variants((2,), fit_images=None))
    assert few.subject["whitening"]["samples"] == 10
    assert every.subject["whitening"]["samples"] == len(benchmark.database)


def test_a_re_ranker_without_its_weights_is_told_before_any_image_is_read(walks, model, tmp_path, covis, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    given = ("evaluate", model, "walks_west", "--data", walks)
    code, _, err = covis(*given, "--rerank", "local:h5=nowhere.h5")
    assert (code, err.count("\n")) == (2, 1)
    assert "needs a file of features" in err
    assert not (tmp_path / "cache").exists()


def test_several_models_at_once(walks, model, tmp_path, covis):
    other = tmp_path / "wide"
    PlaceModel.build(ModelConfig("tiny", image_size=(48, 48)), seed=1).save(other, {"licence": "CC BY 4.0"})
    code, data, _ = covis("evaluate", model, other, "walks_west", "--data", walks, "-o", tmp_path / "evals", "--json")
    assert code == 0
    assert [entry["subject"]["label"] for entry in data] == ["small", "wide"]
    code, _, err = covis("evaluate", model, model, "walks_west", "--data", walks)
    assert code == 2
    assert "have the same name" in err
    code, _, err = covis("evaluate", model, other)
    assert code == 2
    assert "no benchmark is named" in err

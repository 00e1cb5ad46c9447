"""The report: every number is there, the file is whole in itself, and nothing in a run can break it."""

import base64
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veca.probes.results import Cell, Results, write_results
from veca.report import report, run_name
from veca.report.stages import read_stages
from veca.report.views import MAX_STEPS, step_colours
from veca.train.snapshots import Snapshot, write_snapshot
from veca.utils.chart import BASELINES

VOID = {"meta", "br", "hr", "img", "link"}
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='a'>"


class Page(HTMLParser):
    """Checks that tags balance and gathers what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.cells: list[str] = []
        self.ids: list[str] = []
        self.titles: list[str] = []  # of the sections
        self.charts: dict[str, str] = {}  # SVG, by caption
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        found = {name: value or "" for name, value in attrs}
        head, _, picture = found.get("src", "").partition(",")
        if head == "data:image/svg+xml;base64":
            self.charts[found["alt"]] = base64.b64decode(picture).decode()
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open[-1:] == ["h2"]:
            self.titles.append(data)
        if self.open[-1:] in (["td"], ["strong"]):
            self.cells.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def write_stage(folder: Path, *, budgets: tuple[int, ...] = (8, 64), resolution: int = 256) -> Path:
    """Twenty logged steps and two validations of a made-up run."""
    rows = ["step,name,value"]
    for step in range(20):
        values = {"train/loss": 2 - step / 20, "train/loss_cls": 0.5, "train/loss_dense": 1.5 - step / 20}
        values |= {"train/budget": budgets[step % len(budgets)], "train/resolution": resolution}
        values |= {"train/images_per_second": 31.25, "lr/normuon": 1e-3, "lr/adamw": 4e-4}
        values |= {"train/skipped": 7, "train/skipped_truncated": 7}
        if step in (9, 19):
            grid = f"val/r{resolution}"
            for place, budget in enumerate(budgets):
                values[f"{grid}/b{budget}/loss"] = 0.9137 - place / 10 - step / 1000
            values |= {f"{grid}/constant/loss": 0.8512, "val/loss": 0.8}
        rows += [f"{step},{name},{value!r}" for name, value in values.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    (folder / "config.yaml").write_text(f'model:\n  size: tiny\n  note: "{HOSTILE}"\n')
    return folder


def make_snapshot(step: int, *, seed: int = 0, cores: int = 16, key: str = "a") -> Snapshot:
    """Of two images with 4 × 4 patches."""
    chance = np.random.default_rng(seed)
    return Snapshot(
        step=step,
        keys=[key, "b"],
        images=chance.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8),
        scores=chance.standard_normal((2, 16, 5), dtype=np.float32),
        basis=chance.standard_normal((2, 5, 24)).astype(np.float16),
        places=chance.uniform(-1, 1, (3 if cores else 0, 2, cores, 2)).astype(np.float32),
        grid=(4, 4),
    )


def make_page(run: Path) -> Page:
    report(run)
    return Page((run / "report.html").read_text(encoding="utf-8"))


def test_numbers_of_the_run_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = make_page(write_stage(tmp_path / "demo"))
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[-1] == str(tmp_path / "demo" / "report.html")
    assert any(line.startswith("| val loss |") for line in printed)
    row = page.cells[page.cells.index("256 px") :][:5]
    assert row == [
        "256 px",
        "loss",
        "0.8947 ▲",
        "0.7947",
        "0.8512",
    ]  # the last validation, marked where it loses
    for words in ("demo", "31.25", "train/skipped_truncated", "size: tiny", "python", "torch"):
        assert words in page.text
    assert "images per second" in page.charts["Throughput"]
    for caption in (
        "Training losses",
        "Validation at 256 px",
        "Learning rates",
        "Throughput",
        "Budgets drawn",
    ):
        assert caption in page.words
    assert "demo: final validation loss at every budget" in page.words
    assert page.charts["Budgets drawn"].count("50 %") == 2  # half the steps at each budget


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = make_page(write_stage(tmp_path / "run"))
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.references
    assert all(value.startswith("data:image/svg+xml;base64,") for value in page.references)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not any("<script" in chart or "<image" in chart for chart in page.charts.values())
    assert not re.search(r"https?://|url\(|@import", text)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "<b onclick=a>&amp;")
    with (run / "metrics.csv").open("a") as file:
        file.write(f"20,train/skipped_{HOSTILE},1\n")
    write_results(
        run / "knn.json",
        Results(HOSTILE, HOSTILE, HOSTILE, [HOSTILE], [Cell(HOSTILE, 8, 256, {HOSTILE: 0.5})]),
    )
    page = make_page(run)
    assert "script" not in page.tags
    assert "<b onclick=a>&amp;" in page.words
    assert page.text.count(HOSTILE) >= 5


def test_two_stages_in_order(tmp_path: Path) -> None:
    write_stage(tmp_path / "multires", budgets=(8, 16, 64), resolution=384)
    write_stage(tmp_path / "pretrain", budgets=(64,))
    (tmp_path / "checkpoints").mkdir()
    write_results(tmp_path / "knn.json", Results("knn", "m", "d", ["top-1"]))
    page = make_page(tmp_path)
    titles = ["Verdict", "Training: pretrain", "Training: multires", "Probes", "Environment of this report"]
    assert page.titles == titles
    assert "256 px" in page.cells
    assert "384 px" in page.cells
    assert "multires: final validation loss at every budget" in page.words  # the last stage's


@pytest.mark.parametrize(
    ("losses", "constant", "sentence"),
    [
        (
            {256: (0.4, 0.3), 512: (0.45, 0.2)},
            0.5,
            "beats the constant at every resolution and budget: best 60.0 % below it (512 px, budget 64), "
            "worst 10.0 % below it (512 px, budget 8); a larger budget is nowhere worse.",
        ),
        (
            {256: (0.4, 0.6)},
            0.5,
            "beats the constant in 1 of 2 cases (resolution × budget): best 20.0 % below it (256 px, "
            "budget 8), worst 20.0 % above it (256 px, budget 64); in 1 of 1 steps a larger budget is worse, "
            "most at 256 px: 0.6 with 64 cores, 0.4 with 8.",
        ),
        (
            {256: (0.6, math.nan)},
            0.5,
            "beats the constant nowhere: best 20.0 % above it (256 px, budget 8), worst not finite (256 px, "
            "budget 64); in 1 of 1 steps a larger budget is worse, most at 256 px: inf with 64 cores, "
            "0.6 with 8.",
        ),
        (
            {256: (0.6, 0.5)},
            None,
            "no constant to compare the student with; a larger budget is nowhere worse.",
        ),
    ],
)
def test_the_verdict_comes_first(
    tmp_path: Path, losses: dict[int, tuple[float, float]], constant: float | None, sentence: str
) -> None:
    lines = ["step,name,value", "9,train/loss,0.5"]
    for side, pair in losses.items():
        lines += [f"9,val/r{side}/b{budget}/loss,{loss}" for budget, loss in zip((8, 64), pair, strict=True)]
        lines += [] if constant is None else [f"9,val/r{side}/constant/loss,{constant}"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    page = make_page(tmp_path)
    assert page.titles[:2] == ["Verdict", "Training"]
    said = [word for word in page.words if sentence in word]
    assert len(said) == 1
    assert "val loss" in next(iter(page.charts.values()))


def test_a_run_has_the_name_of_what_it_is() -> None:
    assert run_name(Path("/somewhere/demo/run")) == "demo"
    assert run_name(Path("/somewhere/runs/small")) == "small"


def test_probes_come_in_the_order_of_the_work_and_numbers_are_rounded(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    for name in ("depth", "linear", "other", "knn", "segment"):
        cells = [Cell(kind, budget, 64, {"top-1": 0.5}) for kind in ("model",) for budget in (8, 64)]
        cells += [Cell("raw pixels", None, 64, {"top-1": 0.25})]
        cells += [Cell("random weights", budget, 64, {"top-1": 0.3}) for budget in (8, 64)][: name != "knn"]
        settings = {"max_depth": 5.871000289916992, "rates": [1e-3, 0.30000000000000004]}
        write_results(run / f"{name}.json", Results(name, "m", "d", ["top-1"], cells, settings))
    page = make_page(run)
    assert page.titles == ["Verdict", "Training", "Probes", "Environment of this report"]
    probes = [word.removeprefix("Probe: ") for word in page.words if word.startswith("Probe: ")]
    assert probes == ["knn", "linear", "segment", "depth", "other"]
    assert "max_depth = 5.871, rates = 0.001, 0.3" in page.text
    charts = [page.charts[f"Elastic curve: {name}"] for name in probes]
    assert all("raw pixels, 64 px" in chart for chart in charts)
    assert all(f"stroke: {BASELINES['raw pixels']}" in chart for chart in charts)


def test_probe_tables(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    cells = [Cell("model", 8, 256, {"accuracy": 0.5123}), Cell("model", 64, 256, {"accuracy": 0.6})]
    cells += [
        Cell("random weights", 8, 256, {"accuracy": value}, seed=int(10 * value)) for value in (0.2, 0.3)
    ]
    counts = {"train": {"a": 30, "b": 10}, "val": {"a": 3, "b": 4}}
    knn = Results("knn", "m", "d", ["accuracy"], cells, {"k": 20}, counts, {"x": "bad"}, complete=False)
    write_results(run / "knn.json", knn)
    masks = {"val": {"sky": 900, "road": 101, "(ignored)": 7}}
    flat = [Cell("model", 8, 256, {"mIoU": 0.25, "pixel accuracy": 0.5})]
    segment = Results("segment", "m", "d", ["mIoU", "pixel accuracy"], flat, counts=masks)
    write_results(run / "segment.json", segment)
    (run / "other.json").write_text("{}")
    page = make_page(run)
    assert {"51.2 %", "25.0 ± 7.1 %", "60.0 %", "50.0 %"} <= set(page.cells)
    assert "Elastic curve: knn" in page.words
    assert "Elastic curve: segment" not in page.words  # one budget makes no curve
    assert "val: 1,001 labelled pixels, 2 classes" in page.text
    assert "Unfinished: run the probe again to go on." in page.words
    assert "train: 40 images, 2 classes; val: 7 images, 2 classes" in page.text
    assert "1 unreadable images were left out" in page.text


def test_missing_parts_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    page = make_page(tmp_path)
    assert "seed: 1\n" in page.words
    assert not page.charts
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "metrics.csv").write_text("step,name,value\n3,train/loss,0.5\n4,train/lo")
    assert list(make_page(tmp_path).charts) == ["Training losses"]


def test_validation_after_training_is_final_but_no_point_of_the_curve(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    with (run / "metrics.csv").open("a") as file:
        file.write("0,val/r256/b8/loss,0.1234\n")
    assert "0.1234" in make_page(run).cells
    (stage,) = read_stages(run)
    assert stage.curve("val/r256/b8/loss")[-1] == (19, pytest.approx(0.8947))


def test_what_the_model_sees_over_time(tmp_path: Path) -> None:
    for place, name in enumerate(("pretrain", "multires")):
        run = write_stage(tmp_path / name)
        for step in range(350, 350 * 10, 350):
            write_snapshot(run / "snapshots", make_snapshot(step, seed=place)._replace(step=step))
    page = make_page(tmp_path)
    assert page.words.count("What the model sees, over time") == 2
    steps = [word for word in page.words if re.fullmatch(r"after .* steps", word)]
    assert len(steps) == 2 * MAX_STEPS
    assert (steps[0], steps[MAX_STEPS - 1]) == ("after 350 steps", "after 3150 steps")
    pictures = [value for value in page.references if value.startswith("data:image/png;base64,")]
    inside = [value[1:] for value in page.references if value.startswith("#")]
    charts = [value for value in page.references if value.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) + len(inside) + len(charts) == len(page.references)  # nothing from elsewhere
    assert len(pictures) == 2 * 2 * (1 + MAX_STEPS)
    assert set(inside) == set(page.ids)
    assert len(page.ids) == len(set(page.ids)) == 4  # each image once
    assert len(inside) == 2 * 2 * MAX_STEPS
    sizes = [Image.open(io.BytesIO(base64.b64decode(value.partition(",")[2]))).size for value in pictures]
    assert sizes[: 1 + MAX_STEPS] == [(64, 64)] + [(4, 4)] * MAX_STEPS
    assert "core 7" in page.words
    assert "core 8" not in page.words
    assert "not shown: 3." in page.text


def test_core_paths_are_where_the_cores_are(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    places = np.zeros((2, 2, 1, 2), dtype=np.float32)
    places[1] = (-1, 0.5)  # from the middle to the left, lower half
    write_snapshot(run / "snapshots", make_snapshot(1)._replace(places=places))
    make_page(run)
    text = (run / "report.html").read_text(encoding="utf-8")
    assert text.count('<polyline points="80.0,80.0 0.0,120.0"/>') == 4  # two images; a line and its edge


def test_colours_mean_the_same_at_every_step() -> None:
    one, two = make_snapshot(1), make_snapshot(2, seed=5)
    first, other, again = step_colours([one, two, one._replace(step=3)], 0)
    np.testing.assert_allclose(first, again, atol=1e-4)
    assert abs(first - other).max() > 0.1
    turned = one._replace(scores=-one.scores, basis=-one.basis)  # the same features
    first, same = step_colours([one, turned], 0)
    np.testing.assert_allclose(first, same, atol=1e-4)


def test_a_student_without_cores_has_feature_maps_alone(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    write_snapshot(run / "snapshots", make_snapshot(5, cores=0, key=HOSTILE))
    page = make_page(run)
    assert "after 5 steps" in page.words
    assert HOSTILE in page.words
    assert "script" not in page.tags
    assert "core paths" not in page.text
    assert "core 0" not in page.words
    assert "use" not in page.tags


def test_snapshots_of_other_images_are_left_out(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    write_snapshot(run / "snapshots", make_snapshot(5, key="other"))
    write_snapshot(run / "snapshots", make_snapshot(6))
    (run / "snapshots" / "step-000007.npz").write_bytes(b"PK")
    page = make_page(run)
    assert [word for word in page.words if word.startswith("after ")] == ["after 6 steps"]
    assert "not shown: 1." in page.text


def test_the_environment_of_the_run(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    assert "Environment of the run" not in make_page(run).words
    state = {"folder": "/a", "commit": "0123456789abcdef", "num_changed": 3}
    first = {
        "started": "2026-01-01T10:00:00+00:00",
        "step": 0,
        "command": HOSTILE,
        "packages": {"torch": "2.7"},
    }
    first |= {"world_size": 8, "git": {"veca": state}}
    second = {**first, "started": "2026-01-02T10:00:00+00:00", "step": 350, "world_size": 4}
    third = {**second, "started": "2026-01-03T10:00:00+00:00", "step": 700}
    starts = {"format": "veca-environment", "version": 1, "starts": [first, second, third]}
    (run / "environment.json").write_text(json.dumps(starts))
    page = make_page(run)
    assert "Environment of the run" in page.words
    assert page.cells[page.cells.index("world size") :][:3] == [
        "world size",
        "from step 0: 8",
        "from step 350: 4",
    ]
    assert page.cells[page.cells.index("git, veca") + 1] == "0123456789ab, 3 files changed since"
    assert "from step 700: 2026-01-03T10:00:00+00:00" in page.cells
    assert HOSTILE in page.cells
    (run / "environment.json").write_text('{"starts": [3]}')
    with pytest.raises(ValueError, match=r"environment\.json is damaged"):
        report(run)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run at .*missing.*`veca fit`"):
        report(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=r"holds no metrics\.csv, config\.yaml or probe results"):
        report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,name,value\nx,train/loss,1\n")
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        report(tmp_path)

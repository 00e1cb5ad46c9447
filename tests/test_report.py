"""The report: every number is there, the file is whole in itself, and nothing in a run can break it."""

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from veca.probes.results import Cell, Results, write_results
from veca.report import report
from veca.report.chart import COLOURS, MAX_POINTS, Line, bar_chart, line_chart, thin, ticks

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
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
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
    for words in (
        "demo",
        "31.25",
        "train/skipped_truncated",
        "images per second",
        "size: tiny",
        "python",
        "torch",
    ):
        assert words in page.text
    for caption in (
        "Training losses",
        "Validation at 256 px",
        "Learning rates",
        "Throughput",
        "Budgets drawn",
    ):
        assert caption in page.words
    assert "Elastic curve: one model, every budget" in page.words
    assert page.words.count("50 %") == 2  # half the steps at each budget


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = make_page(write_stage(tmp_path / "run"))
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.references == []
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
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
    assert page.text.count(HOSTILE) >= 6


def test_two_stages_in_order(tmp_path: Path) -> None:
    write_stage(tmp_path / "multires", budgets=(8, 16, 64), resolution=384)
    write_stage(tmp_path / "pretrain", budgets=(64,))
    (tmp_path / "checkpoints").mkdir()
    page = make_page(tmp_path)
    assert [word for word in page.words if word in ("pretrain", "multires", "checkpoints")] == [
        "pretrain",
        "multires",
    ]
    assert page.tags.count("section") == 3
    assert "256 px" in page.cells
    assert "384 px" in page.cells
    assert page.words.count("Elastic curve: one model, every budget") == 1  # one budget makes no curve


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
    assert "svg" not in page.tags
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "metrics.csv").write_text("step,name,value\n3,train/loss,0.5\n4,train/lo")
    assert make_page(tmp_path).tags.count("svg") == 1


def test_validation_after_training_is_final_but_no_point_of_the_curve(tmp_path: Path) -> None:
    run = write_stage(tmp_path / "run")
    with (run / "metrics.csv").open("a") as file:
        file.write("0,val/r256/b8/loss,0.1234\n")
    page = make_page(run)
    assert "0.1234" in page.cells
    assert not [word for word in page.words if word.startswith("budget 8, 0:")]
    assert [word for word in page.words if word.startswith("budget 8, 19:")] == ["budget 8, 19: 0.8947"]


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


def test_line_places_are_linear_and_inside() -> None:
    chart = line_chart([Line("a", [(0, 1), (5, 2), (10, 3)], COLOURS[0])], x_label="x", y_label="y")
    points = re.search(r'points="([^"]+)"', chart)
    assert points
    (x0, y0), (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in points[1].split())
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert 0 < x0 < x2 < 480
    assert 280 > y0 > y2 > 0  # up is more


def test_values_that_are_not_finite_are_said(tmp_path: Path) -> None:
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf)]
    chart = line_chart([Line("loss", points, COLOURS[0])], x_label="x", y_label="y")
    assert "loss (2 values not finite)" in chart
    assert "nan" not in chart
    assert line_chart([Line("loss", points[1:], COLOURS[0])], x_label="x", y_label="y") == ""
    assert bar_chart({}, x_label="x", y_label="y") == ""


def test_long_lines_are_averaged() -> None:
    points = [(float(i), float(i % 2)) for i in range(100_000)]
    short = thin(points)
    assert len(short) <= MAX_POINTS
    assert all(value == 0.5 for _, value in short)
    assert thin(points[:MAX_POINTS]) == points[:MAX_POINTS]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 9), (0, 1e-5), (1e6, 3e6), (0.701, 0.702)])
def test_ticks(low: float, high: float) -> None:
    places = ticks(low, high)
    steps = [b - a for a, b in pairwise(places)]
    assert 3 <= len(places) <= 8
    assert low - 1e-9 <= places[0] < places[-1] <= high + 1e-9
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)

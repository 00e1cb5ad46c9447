"""The JSON that probes leave and the report reads."""

import json
from pathlib import Path

import pytest

from veca.probes.results import (
    Results,
    Row,
    markdown,
    read_results,
    results_path,
    shown,
    table,
    write_results,
)

RESULTS = Results(
    probe="knn",
    model="m",
    data="d",
    quantity="accuracy",
    rows=[Row("model", 8, 256, 0.5), Row("random weights", 8, 256, 0.25, 0.0123)],
    counts={"train": {"ä": 3}},
)


def test_round_trip(tmp_path: Path) -> None:
    write_results(tmp_path / "knn.json", RESULTS)
    assert read_results(tmp_path / "knn.json") == RESULTS
    row = {"name": "model", "budget": 8, "resolution": 256, "accuracy": 0.5, "spread": None}
    assert json.loads((tmp_path / "knn.json").read_text())["results"][0] == row


def test_markdown() -> None:
    assert markdown(table(RESULTS)).splitlines() == [
        "| features | budget | resolution | accuracy |",
        "| --- | ---: | ---: | ---: |",
        "| model | 8 | 256 | 50.0 % |",
        "| random weights | 8 | 256 | 25.0 ± 1.2 % |",
    ]


def test_quantities_that_are_no_share_keep_their_unit() -> None:
    assert shown(Row("model", 8, 256, 0.5, 0.01), "rmse") == "0.500 ± 0.010"


def test_other_json_is_not_ours(tmp_path: Path) -> None:
    for text in ("[]", "{}", '{"model_type": "veca"}'):
        (tmp_path / "config.json").write_text(text)
        assert read_results(tmp_path / "config.json") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"format": "veca-probe", "version": 2}', "another version"),
        ('{"format": "veca-probe", "version": 1}', "damaged"),
        ('{"format": "veca-probe", "version": 1, "quantity": "a", "results": [{"a": 1}]}', "damaged"),
    ],
)
def test_damaged(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "knn.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path / "knn.json")


def test_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "weights.pt").touch()
    places = {"model": "model/knn.json", "weights.pt": "knn.json", "owner/name": "knn.json"}
    for model, expected in places.items():
        assert results_path(model, None, probe="knn") == Path(expected)
    assert results_path("model", Path("new/a.json"), probe="knn") == Path("new/a.json")
    assert Path("new").is_dir()

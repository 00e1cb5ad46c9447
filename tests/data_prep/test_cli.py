"""The command as people type it."""

import json

import pytest

from veca_data.cli import main


def _run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_from_photos_to_a_checked_dataset(photos, tmp_path, capsys):
    out = tmp_path / "out"
    status, text, _ = _run(capsys, "shards", photos, "--out", out, "--shard-bytes", "20kB", "--workers", 1)
    assert status == 0
    assert "39 samples in 4 shards" in text
    assert json.loads((out / "index.json").read_text())["options"]["shard_bytes"] == 20_000
    status, text, _ = _run(capsys, "check", out, "--decode", "--workers", 1)
    assert (status, text) == (0, f"{out}: sound\n")
    (out / "val-000000.tar").unlink()
    status, text, _ = _run(capsys, "check", out, "--workers", 1)
    assert status == 1
    assert "val-000000.tar: missing" in text
    status, text, _ = _run(capsys, "scan", photos, "--workers", 1)
    assert (status, "images      40" in text) == (0, True)
    status, text, _ = _run(capsys, "estimate", photos, "--workers", 1)
    assert (status, "40 images" in text) == (0, True)


def test_parts_and_merge(photos, tmp_path, capsys):
    out = tmp_path / "out"
    for part in ("0/2", "1/2"):
        status, text, _ = _run(
            capsys, "shards", photos, "--out", out, "--shard-samples", 5, "--part", part, "--workers", 1
        )
        assert status == 0
        assert f"veca data merge {out}" in text
    status, text, _ = _run(capsys, "merge", out)
    assert status == 0
    assert "39 samples in 8 shards" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shards", "nowhere", "--out", "x"], "source nowhere does not exist"),
        (["shards", "nowhere"], "--out"),
        (["shards", ".", "--out", "x", "--shard-bytes", "many"], "256MB"),
        (["shards", ".", "--out", "x", "--part", "2/2"], "the last is 1/2"),
        (["shards", ".", "--out", "x", "--part", "half"], "looks like 0/4"),
        (["shards", ".", "--out", "x", "--qality", "9"], "no option --qality, did you mean --quality?"),
        (
            ["shards", ".", "--outt", "x", "--sed=9"],
            "no option --outt, did you mean --out?; no option --sed, di",
        ),
        (["shards", ".", "--out", "/dev/null/x"], "out: /dev/null/x cannot be written"),
        (["sample", "--out", "/dev/null/x"], "out: /dev/null/x cannot be written"),
        (["estimate", ".", "--resolutions", "big"], "256,512"),
        (["check", "nowhere"], "no index.json in nowhere"),
        (["merge", "nowhere"], "Run `shards` first"),
        (["explode"], "explode"),
        ([], "VERB"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = _run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("veca-data: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_failures_of_the_work_have_their_own_status(photos, tmp_path, capsys):
    (photos / "bad.jpg").touch()
    status, _, err = _run(capsys, "shards", photos, "--out", tmp_path / "out", "--workers", 1)
    assert status == 1
    assert "veca-data: error: 1 of 41 images were rejected" in err


@pytest.mark.parametrize("verb", ["sample", "scan", "shards", "merge", "check", "estimate"])
def test_every_verb_has_help(capsys, verb):
    status, text, _ = _run(capsys, verb, "--help")
    assert status == 0
    assert f"usage: veca-data {verb}" in text
    assert "  --" in text


def test_annotations_are_an_option_of_their_own(photos, tmp_path, capsys, rejects_of):
    for number in (1, 2):
        (tmp_path / f"{number}.json").write_text(
            json.dumps({"images": [{"file_name": f"patch0/{number}.jpg"}]})
        )
    flags = ["--annotations", tmp_path / "1.json", "--annotations", tmp_path / "2.json", "--max-rejects", 0.1]
    status, _, _ = _run(capsys, "shards", *flags, photos, "--out", tmp_path / "out", "--workers", 1)
    assert status == 0
    assert set(rejects_of(tmp_path / "out")) == {"patch0/1.jpg", "patch0/2.jpg"}

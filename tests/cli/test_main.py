from importlib.metadata import version
from pathlib import Path

import pytest

from veca.cli.main import GROUPS, VERBS, main


def test_veca_alone_shows_every_verb_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    text = capsys.readouterr().out
    assert all(verb.split()[-1] in text for verb in VERBS)
    assert len(text.splitlines()) < 25


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_help_starts_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "data":
        with pytest.raises(SystemExit, match="0"):
            main(["data", "shards", "--help"])
    else:
        main([*name.split(), "--help"])
    head = capsys.readouterr().out.split("\n\n")[:2]
    assert head[0].startswith("usage: veca")
    assert head[1].startswith(f"example: veca {name}")


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_a_group_shows_its_kinds(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([group])
    text = capsys.readouterr().out
    assert all(name.split()[1] in text for name in VERBS if name.startswith(f"{group} "))


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("fti", "Did you mean veca fit?"),
        ("probe kn", "Did you mean veca probe knn?"),
        ("zzz", "`veca` alone"),
    ],
)
def test_an_unknown_verb_is_told_the_nearest(typed: str, hint: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(typed.split())
    assert hint in str(stop.value)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"veca {version('veca')}\n"


def test_the_data_stage_and_former_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", "scan", str(tmp_path / "none")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("veca data: error:")
    main(["bench", "plan", "--help"])
    assert "example: veca plan" in capsys.readouterr().out


def test_a_mistake_ends_with_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(tmp_path / "none.pt"), str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"veca: error: no checkpoint at {tmp_path / 'none.pt'}.\n"
    assert not (tmp_path / "out").exists()

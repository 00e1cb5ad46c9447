from pathlib import Path

import pytest

from veca.cli.main import VERBS, main


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)


def test_an_unknown_verb_shows_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no verb 'fti'") as stop:
        main(["fti"])
    assert "convert" in str(stop.value)


def test_a_mistake_ends_with_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(tmp_path / "none.pt"), str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"veca: error: no checkpoint at {tmp_path / 'none.pt'}.\n"
    assert not (tmp_path / "out").exists()

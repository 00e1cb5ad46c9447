"""What a process says before it leaves."""

from pathlib import Path

import pytest

from veca.cli.main import main
from veca.utils.leaving import describe


def test_a_missing_file_is_named_without_its_number(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    with pytest.raises(FileNotFoundError) as error:
        path.read_bytes()
    assert describe(error.value) == f"{path}: no such file or directory. Check the path."
    assert describe(OSError("no room")) == "no room"


def test_a_verb_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "nowhere.yaml"])
    assert ended.value.code == 2
    assert "Errno" not in capsys.readouterr().err

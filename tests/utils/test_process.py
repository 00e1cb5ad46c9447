"""What a process says before it leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from veca.cli.main import main
from veca.utils.process import describe


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


ROUNDS = """
import resource, sys
import numpy as np
from veca.utils.process import keep_memory

kept = keep_memory() if sys.argv[1] == "keep" else False
faults = []
for _ in range(4):
    pieces = [np.ones(64 * 2**20, dtype=np.uint8) for _ in range(3)]
    del pieces
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(int(kept), faults[-1] - faults[0])
"""


def _page_faults(how: str) -> tuple[bool, int]:
    """Whether memory is kept, and the pages fetched by three more rounds of the same 192 MiB."""
    done = subprocess.run([sys.executable, "-c", ROUNDS, how], check=True, capture_output=True, text=True)
    kept, faults = map(int, done.stdout.split())
    return bool(kept), faults


def test_the_next_round_needs_no_new_pages():
    kept, faults = _page_faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert faults < 1000 < _page_faults("leave")[1]

"""The tests pass wherever they are started: a few of them again, in a process and a place that are odd.

In the background, under cron, in a container or in somebody's deep folder a process may have SIGINT ignored,
no stdin, no HOME, another clock and a path that needs quoting. All at once in `make test`; one by one, to
tell which it was, in `make torture`.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBSET = [  # quick ones about signals, processes, files, times and the command line
    "tests/train/test_preemption.py::test_handlers_are_ours_during_training_and_gone_after_it",
    "tests/train/test_preemption.py::test_at_the_end_of_a_process_late_signals_are_ignored",
    "tests/train/test_survive.py::test_without_locks_the_name_of_the_owner_stands_for_one",
    "tests/train/test_survive.py::test_two_runs_in_one_folder_the_second_refuses",
    "tests/data/test_loader.py::test_workers_change_nothing",
    "tests/data_prep/test_pool.py",
    "tests/data_prep/test_cli.py::test_from_photos_to_a_checked_dataset",
    "tests/cli/test_main.py::test_a_mistake_ends_with_one_line_and_status_2",
    "tests/utils/test_files.py",
    "tests/utils/test_process.py",
]
ODD_PATH = "a 'b' $HOME ü%s; [1]"
ODDITIES = ("SIGINT ignored", "stdin closed", "HOME unset", "odd path", "odd time zone")


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Not pytest's own: below TMPDIR Python makes sockets, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        yield Path(folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "odd",
    [ODDITIES, *(pytest.param((oddity,), marks=pytest.mark.torture) for oddity in ODDITIES)],
    ids=lambda odd: odd[0] if len(odd) == 1 else "all at once",
)
def test_a_few_tests_pass_there_too(odd: tuple[str, ...], short_tmp: Path) -> None:
    assert set(odd) <= set(ODDITIES)
    root, environment = ROOT, dict(os.environ)
    if "HOME unset" in odd:
        environment.pop("HOME", None)
    if "odd time zone" in odd:
        environment["TZ"] = "XYZ+23:45"
    if "odd path" in odd:
        root = short_tmp / ODD_PATH
        for name in ("veca", "data_prep", "tests", "recipes", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        environment["TMPDIR"] = str(root / "tmp")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{root / 'data_prep'}"
        (root / "tmp").mkdir()

    def become_odd() -> None:
        if "SIGINT ignored" in odd:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if "stdin closed" in odd:
            os.close(0)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not torture", *SUBSET]
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        preexec_fn=become_odd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]

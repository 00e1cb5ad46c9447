"""Names that are not where they are looked for."""

import subprocess
import sys
from importlib import import_module

import pytest

from veca.utils.imports import MOVED, require_extra


@pytest.mark.parametrize(
    ("old", "name"), [("veca.run", "ValidateAfterFirstEpoch"), ("veca.teacher", "OfflineTeacher")]
)
def test_a_former_place_gives_the_name_and_says_where_it_is(old: str, name: str) -> None:
    with pytest.warns(FutureWarning) as said:
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(MOVED[old]), name)
    assert [str(each.message) for each in said] == [
        f"{old}.{name} is now {MOVED[old]}.{name}; the old name goes with version 0.3."
    ]
    assert said[0].filename == __file__


def test_a_former_place_imports_nothing_before_a_name_is_asked() -> None:
    code = "import sys, veca, veca.run, veca.teacher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_package_is_named_with_its_extra() -> None:
    require_extra("figures", "sys", "os")
    with pytest.raises(ValueError, match=r"needs no_such_one. Install with: pip install 'veca\[figures\]'"):
        require_extra("figures", "sys", "no_such_one")

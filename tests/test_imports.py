"""Who may import whom: a room uses the rooms below it, never one above and none beside it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEVELS = [
    {"utils"},
    {"types", "model", "data"},
    {"card", "checkpoint", "teachers", "optim", "backbones", "flops", "huge"},
    {"train"},
    {"probes", "features", "export", "interop", "page"},
    {"figures", "bench"},
    {"report"},
    {"cli"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
FRIENDS = [{"types", "model", "data"}, LEVELS[2]]  # may lean on each other; others on a level may not
DATA_STAGE = {"utils", "data", "teachers", "types", "card"}  # the card says what a teacher's licence is
MAY_IMPORT_DATA_STAGE = {"cli", "bench"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in ("veca", "veca_data"))


def room(name: str) -> str:
    """`veca.train.distill.Distill` is in `train`; what `veca` itself exports counts as its lowest room."""
    part = name.split(".")[1]
    return part if part in LEVEL else "model"


def test_rooms_use_what_is_below_them() -> None:
    problems = []
    for path in sorted((ROOT / "veca").rglob("*.py")):
        where = path.relative_to(ROOT / "veca").with_suffix("").parts[0]
        if where == "__init__":
            continue
        assert where in LEVEL, f"{path}: give the new room {where!r} its place in LEVELS"
        for name in imports(path):
            if name.startswith("veca_data."):
                allowed = where in MAY_IMPORT_DATA_STAGE
            else:
                target = room(name)
                friends = any({where, target} <= group for group in FRIENDS)
                allowed = where == target or LEVEL[target] < LEVEL[where] or friends
            if not allowed:
                problems.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not problems, "\n".join(problems)


def test_the_data_stage_leans_on_data_and_teachers_only() -> None:
    problems = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "data_prep").rglob("*.py"))
        for name in imports(path)
        if name.startswith("veca.") and room(name) not in DATA_STAGE
    ]
    assert not problems, "\n".join(problems)


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "veca").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}

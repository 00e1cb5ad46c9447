"""Makes tests/compat/before: shards, a cache, a run of ten steps as it was after five, and a saved model.

Run from a checkout of the version whose files later versions must open, with its environment:

    python tests/compat/make_fixture.py OUT

It goes through the commands people type, since those are what must keep working.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

RECIPE = {
    "seed_everything": 42,
    "trainer": {
        "accelerator": "cpu",
        "devices": 1,
        "strategy": "veca_ddp",
        "precision": "32-true",
        "max_steps": 10,
        "max_epochs": -1,
        "check_val_every_n_epoch": None,
        "val_check_interval": 5,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "default_root_dir": "run",
        "callbacks": [
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {
                    "dirpath": "run/checkpoints",
                    "every_n_train_steps": 5,
                    "save_top_k": -1,
                    "filename": "{step}",
                },
            }
        ],
    },
    "model": {
        "size": "tiny",
        "size_overrides": {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 16},
        "teacher": {
            "class_path": "veca.teacher.CachedTargets",
            "init_args": {"path": "shards", "teacher": "OfflineTeacher", "views": 1},
        },
        "budgets": {8: 1, 16: 1},
        "optimization": {"lr": 1e-3, "min_lr": 1e-4, "weight_decay": 0.01, "warmup_steps": 2},
    },
    "data": {
        "sources": "shards",
        "num_workers": 0,
        "resolutions": {"phases": [{"start_step": 0, "probabilities": {32: 1.0}}], "batch_size": 4},
    },
    "checkpoint_every": 5,
}


def main(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    commands = [
        "data_prep.cli sample --out sample --count 24 --size 48",
        "data_prep.cli shards sample/images --out shards",
        "data_prep.cli cache shards --teacher veca.teacher.OfflineTeacher --resolutions 32 --views 1",
        "veca.cli fit --config recipe.yaml",
        "veca.cli convert run/checkpoints/last.ckpt model",
    ]
    for command in commands:
        module, *words = command.split()
        call = f"import sys; from {module} import main; sys.exit(main())"
        subprocess.run([sys.executable, "-c", call, *words], cwd=out, check=True)
    shutil.rmtree(out / "sample")
    checkpoints = out / "run" / "checkpoints"
    for path in (checkpoints / "last.ckpt", checkpoints / "best.ckpt", checkpoints / "step=10.ckpt"):
        path.unlink()
    for path in [*(out / "run").glob("events.*"), out / "run" / "environment.json", out / "run" / ".lock"]:
        path.unlink()  # of the machine, not of the format


if __name__ == "__main__":
    main(Path(sys.argv[1]))

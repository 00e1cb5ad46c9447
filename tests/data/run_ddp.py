"""Two epochs with Lightning's DDP on two CPU processes; each rank writes what it saw.

python run_ddp.py FOLDER OUT → OUT/0.json and OUT/1.json: [training keys by batch, validation keys by batch]
"""

import json
import sys
import warnings
from pathlib import Path

from tests.data.run_fit import data_module, fit


def main(folder: str, out: Path) -> None:
    data = data_module(folder, num_workers=1)
    recorder = fit(data, max_epochs=2, devices=2, strategy="ddp_find_unused_parameters_false")
    seen = [[keys for *_, keys, _ in recorder.seen], [[n, keys] for _, n, keys in recorder.validated]]
    (out / f"{recorder.global_rank}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]))

"""Two epochs of a dataset as several ranks, each a process with workers of its own; prints what they saw.

python run_ranks.py FOLDER WORLD_SIZE NUM_WORKERS START_METHOD → a line of JSON per rank
"""

import importlib
import json
import multiprocessing
import sys
from multiprocessing import Queue


def run_rank(folder: str, rank: int, size: int, num_workers: int, method: str, results: "Queue[str]") -> None:
    # Not above: a spawned worker imports this file, and has no use for them.
    from veca.data.datamodule import ShardDataModule
    from veca.data.order import Ranks
    from veca.data.resolutions import Phase, ResolutionSchedule

    data = ShardDataModule(
        sources=folder,
        resolutions=ResolutionSchedule([Phase(0, {32: 1.0})], batch_size=4),
        window_shards=2,
        num_workers=num_workers,
        start_method=method,  # type: ignore[arg-type]
    )
    data.setup("fit")
    loader = data.train_loader(ranks=Ranks(rank, size))
    epochs = [[batch.keys for batch in loader] for _ in range(2)]
    loader.close()
    results.put(json.dumps([rank, len(loader), epochs]))


def main(folder: str, size: int, num_workers: int, method: str) -> None:
    importlib.import_module("veca.data.datamodule")  # once, for all ranks that fork
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=run_rank, args=(folder, rank, size, num_workers, method, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        print(results.get(), flush=True)
    for process in processes:
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

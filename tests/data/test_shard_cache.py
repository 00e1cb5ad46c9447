"""The shard cache: right content, within its bound, shared by processes, whatever the server does."""

import multiprocessing
import os
import signal
import time
from multiprocessing import Queue
from pathlib import Path

import pytest

from tests.data.conftest import MakeShards
from tests.data.server import corrupt, cut_off, serve
from veca.data.index import Shard, check_shards, open_sources
from veca.data.reader import ShardReader
from veca.data.shard_cache import ShardCache
from veca.data.transport import Downloader

pytestmark = pytest.mark.timeout(60)


def cache_in(folder: Path, max_bytes: int = 10**9) -> ShardCache:
    return ShardCache(folder, max_bytes=max_bytes, downloader=Downloader(timeout=0.3, backoff=0.01))


def shards_at(url: str) -> list[Shard]:
    return open_sources(url)[0].shards("train")


def open_and_close(cache: ShardCache, shard: Shard) -> None:
    os.close(cache.open(shard.location, shard.info))


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"lock"}


def test_samples_are_those_of_the_folder(make_shards: MakeShards, tmp_path: Path) -> None:
    folder = make_shards([4, 3, 2])
    with serve(folder) as (url, server):
        server.faults["train-000001.tar"] = [server.stall, cut_off, corrupt]
        server.faults["train-000001.offsets.npy"] = [cut_off]
        check_shards(shards_at(url))
        remote = ShardReader(shards_at(url), cache=cache_in(tmp_path / "cache"), max_open=2)
        local = ShardReader(open_sources(str(folder))[0].shards("train"), cache=None, max_open=2)
        for shard, count in enumerate([4, 3, 2]):
            assert [remote.read(shard, i) for i in range(count)] == [
                local.read(shard, i) for i in range(count)
            ]
        assert server.gets["train-000000.tar"] == 1
    # Without a server: all is in the cache, but for shards closed meanwhile nothing is asked again.
    again = ShardReader(remote._shards, cache=cache_in(tmp_path / "cache"), max_open=2)
    assert again.read(1, 2) == remote.read(1, 2)


def test_missing_remote_shards_are_found_before_training(make_shards: MakeShards) -> None:
    folder = make_shards([2, 2, 2])
    (folder / "train-000001.tar").unlink()
    (folder / "train-000002.tar").write_bytes(b"short")
    with serve(folder) as (url, _), pytest.raises(FileNotFoundError, match="2 problems with 3") as error:
        check_shards(shards_at(url))
    assert "404" in str(error.value)
    assert "5 bytes, but the index says" in str(error.value)


def test_the_least_recently_used_goes_first_and_shards_in_use_stay(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    folder = make_shards([2] * 5)
    with serve(folder) as (url, _):
        shards = shards_at(url)
        size = max(shard.info.bytes for shard in shards)
        cache = cache_in(tmp_path / "cache", max_bytes=3 * size)
        in_use = cache.open(shards[0].location, shards[0].info)
        for number in (1, 2, 1, 3):
            open_and_close(cache, shards[number])
            time.sleep(0.01)  # file times are the order of use
        present = [cache.path(shard.info).exists() for shard in shards]
        assert present == [True, True, False, True, False]
        os.close(in_use)
        open_and_close(cache, shards[4])
        assert not cache.path(shards[0].info).exists()


def test_a_full_cache_of_shards_in_use_refuses_prefetching_only(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    folder = make_shards([2] * 3)
    with serve(folder) as (url, _):
        shards = shards_at(url)
        cache = cache_in(tmp_path / "cache", max_bytes=shards[0].info.bytes)
        in_use = cache.open(shards[0].location, shards[0].info)
        assert not cache.fetch(shards[1].location, shards[1].info)
        assert kept(tmp_path / "cache") == {cache.path(shards[0].info).name}
        open_and_close(cache, shards[1])
        assert cache.path(shards[0].info).exists()
        os.close(in_use)


def test_prefetching_fetches_what_comes_next(make_shards: MakeShards, tmp_path: Path) -> None:
    folder = make_shards([2] * 4)
    with serve(folder) as (url, server):
        shards = shards_at(url)
        reader = ShardReader(shards, cache=cache_in(tmp_path / "cache"), max_open=4)
        reader.prefetch([1, 3])
        reader.prefetch([1, 3])
        wanted = [cache_in(tmp_path / "cache").path(shards[number].info) for number in (1, 3)]
        deadline = time.monotonic() + 20
        while not all(path.exists() for path in wanted) and time.monotonic() < deadline:
            time.sleep(0.01)
        reader.read(3, 0)
        assert {name: n for name, n in server.gets.items() if name.endswith(".tar")} == {
            "train-000001.tar": 1,
            "train-000003.tar": 1,
        }


# Forked before the server has threads: a fork is quick, and a process with threads should not fork.
FORK = multiprocessing.get_context("fork")


def _read_all(urls: "Queue[str]", folder: Path, results: "Queue[list[str]]") -> None:
    shards = shards_at(urls.get())
    largest = max(shard.info.bytes for shard in shards)
    reader = ShardReader(shards, cache=cache_in(folder, max_bytes=4 * largest), max_open=1)
    results.put(
        [reader.read(shard, i).key for _ in range(3) for shard in range(len(shards)) for i in range(2)]
    )


def test_processes_share_a_small_cache(make_shards: MakeShards, tmp_path: Path) -> None:
    """Four readers, eight shards, room for four: every key is right and the bound holds afterwards."""
    folder, cache_dir = make_shards([2] * 8), tmp_path / "cache"
    urls, results = FORK.Queue(), FORK.Queue()
    processes = [FORK.Process(target=_read_all, args=(urls, cache_dir, results)) for _ in range(4)]
    for process in processes:
        process.start()
    with serve(folder) as (url, _):
        for _ in processes:
            urls.put(url)
        found = [results.get(timeout=50) for _ in processes]
        for process in processes:
            process.join(10)
    assert all(keys == [f"s{i:05d}" for i in range(16)] * 3 for keys in found)
    sizes = [path.stat().st_size for path in cache_dir.glob("*.tar")]
    assert sum(sizes) <= 4 * max(sizes)
    assert not list(cache_dir.glob("*.part"))


def _download(urls: "Queue[str]", folder: Path) -> None:
    shard = shards_at(urls.get())[0]
    ShardCache(folder, max_bytes=10**9, downloader=Downloader(timeout=30)).open(shard.location, shard.info)


def test_a_killed_download_leaves_nothing_that_lasts(make_shards: MakeShards, tmp_path: Path) -> None:
    folder, cache_dir = make_shards([2] * 2), tmp_path / "cache"
    urls = FORK.Queue()
    process = FORK.Process(target=_download, args=(urls, cache_dir))
    process.start()
    with serve(folder) as (url, server):
        shards = shards_at(url)
        server.faults["train-000000.tar"] = [server.stall]
        urls.put(url)
        deadline = time.monotonic() + 30
        while not server.gets["train-000000.tar"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        cache = cache_in(cache_dir, max_bytes=shards[1].info.bytes)
        assert len(list(cache_dir.glob("*.part"))) == 1
        open_and_close(cache, shards[1])  # its bytes are needed: the part of the dead process goes
        assert kept(cache_dir) == {cache.path(shards[1].info).name}
        open_and_close(cache, shards[0])
        assert kept(cache_dir) == {cache.path(shards[0].info).name}

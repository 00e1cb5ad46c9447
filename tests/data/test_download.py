"""Files behind http: retried when that may help, checked on arrival, never another scheme."""

import hashlib
import io
import time
from pathlib import Path

import pytest

from tests.data.server import corrupt, cut_off, serve, too_long, unavailable
from veca.data.download import Downloader, is_url

CONTENT = bytes(range(256)) * 40
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path


def quick(attempts: int = 5) -> Downloader:
    return Downloader(timeout=0.2, attempts=attempts, backoff=0.01)


def save(url: str, downloader: Downloader) -> bytes:
    file = io.BytesIO(b"?" * (2 * len(CONTENT)))
    downloader.save(f"{url}/file", file, size=len(CONTENT), sha256=SUM)
    return file.getvalue()


@pytest.mark.timeout(30)
def test_a_download_survives_every_fault(folder: Path) -> None:
    with serve(folder) as (url, server):
        server.faults["file"] = [server.stall, cut_off, corrupt, too_long]
        assert save(url, quick()) == CONTENT
        assert server.gets["file"] == 5
        server.faults["file"] = [unavailable, cut_off]
        assert quick().read(f"{url}/file") == CONTENT


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("fault", "message"),
    [(corrupt, "sha256"), (cut_off, "bytes arrived"), (unavailable, "503")],
)
def test_a_lasting_fault_is_named(folder: Path, fault: object, message: str) -> None:
    with serve(folder) as (url, server):
        server.faults["file"] = [fault] * 9  # type: ignore[list-item]
        with pytest.raises(OSError, match=rf"/file: 3 attempts failed; the last one with: .*{message}"):
            save(url, quick(attempts=3))
        assert server.gets["file"] == 3


@pytest.mark.timeout(30)
def test_a_missing_file_is_not_asked_for_again(folder: Path) -> None:
    with (
        serve(folder) as (url, _),
        pytest.raises(FileNotFoundError, match="/nothing: the server answers 404"),
    ):
        Downloader(attempts=3, backoff=100).read(f"{url}/nothing")


@pytest.mark.timeout(30)
def test_waits_grow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with serve(folder) as (url, server):
        server.faults["file"] = [unavailable] * 4
        assert Downloader(attempts=5, backoff=0.5).read(f"{url}/file") == CONTENT
    assert waits == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.timeout(30)
def test_headers_tell_what_is_wrong(folder: Path) -> None:
    with serve(folder) as (url, server):
        assert quick().head_problem(f"{url}/file", size=len(CONTENT)) is None
        assert "the index says 7" in (quick().head_problem(f"{url}/file", size=7) or "")
        assert "404" in (quick().head_problem(f"{url}/other", size=7) or "")
        assert server.gets["file"] == 0


@pytest.mark.parametrize("source", ["pipe:cat x", "file:///etc/passwd", "file:/etc", "s3://b/x", "ftp://h/x"])
def test_other_schemes_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="must be a folder, or a URL"):
        is_url(source)


def test_folders_and_urls_are_told_apart() -> None:
    assert is_url("https://host/x")
    assert not is_url("/data/x")
    assert not is_url("data/x")

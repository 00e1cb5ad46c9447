"""Files behind http: retried when that may help, checked on arrival, never another scheme."""

import hashlib
import http.client
import io
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.data.server import Fault, corrupt, cut_off, redirect, serve, too_long, trickle, unavailable
from veca.data.index import load_index, open_sources
from veca.data.transport import Downloader, is_url

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
        assert quick().read(f"{url}/file", max_bytes=10**6) == CONTENT


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
        Downloader(attempts=3, backoff=100).read(f"{url}/nothing", max_bytes=9)


@pytest.mark.timeout(30)
def test_waits_grow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with serve(folder) as (url, server):
        server.faults["file"] = [unavailable] * 4
        assert Downloader(attempts=5, backoff=0.5).read(f"{url}/file", max_bytes=10**6) == CONTENT
    assert waits == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.timeout(30)
def test_headers_tell_what_is_wrong(folder: Path) -> None:
    with serve(folder) as (url, server):
        assert quick().head_problem(f"{url}/file", size=len(CONTENT)) is None
        assert "the index says 7" in (quick().head_problem(f"{url}/file", size=7) or "")
        assert "404" in (quick().head_problem(f"{url}/other", size=7) or "")
        assert server.gets["file"] == 0


def trickle_headers(request: BaseHTTPRequestHandler, data: bytes) -> None:
    trickle(request, b"HTTP/1.0 200 " + b"x" * 10_000)


def trickle_body(request: BaseHTTPRequestHandler, data: bytes) -> None:
    trickle(request, b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data), data)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("fault", [trickle_headers, trickle_body])
def test_a_trickle_is_given_up_and_asked_for_again(folder: Path, fault: Fault) -> None:
    """Every byte comes within the time-out, and all of them in minutes."""
    impatient = Downloader(timeout=0.2, attempts=2, backoff=0.01, patience=0.1)
    with serve(folder) as (url, server):
        server.faults["file"] = [fault]
        assert save(url, impatient) == CONTENT
        assert server.gets["file"] == 2
        server.faults["file"] = [fault] * 2
        start = time.monotonic()
        with pytest.raises(OSError, match=r"2 attempts failed; .* bytes in .* s; the least is 1000 bytes"):
            impatient.read(f"{url}/file", max_bytes=10**6)
        assert time.monotonic() - start < 5


@pytest.mark.timeout(30)
@pytest.mark.parametrize("stated", [True, False])
def test_no_more_is_read_than_a_small_file_has(folder: Path, stated: bool) -> None:
    def endless(request: BaseHTTPRequestHandler, data: bytes) -> None:
        length = b"Content-Length: 99999999\r\n" if stated else b""
        request.wfile.write(b"HTTP/1.0 200 OK\r\n" + length + b"\r\n" + data)

    with serve(folder) as (url, server):
        assert quick().read(f"{url}/file", max_bytes=len(CONTENT)) == CONTENT
        server.faults["file"] = [endless] * 2
        with pytest.raises(ValueError, match=r"/file has more than 1,000 bytes, .*several sources"):
            quick().read(f"{url}/file", max_bytes=1000)
        assert server.gets["file"] == 2  # the same would come again


@pytest.mark.timeout(30)
def test_an_index_is_bounded_near_and_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "index.json").write_bytes(CONTENT)
    monkeypatch.setattr("veca.data.index.MAX_INDEX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"index.json has 10,240 bytes, but an index has at most 1,000"):
        load_index(folder)
    with serve(folder) as (url, _), pytest.raises(ValueError, match=r"index.json has more than 1,000 bytes"):
        open_sources(url)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://me:secret@127.0.0.1/x"]
)
def test_redirects_stay_within_http(folder: Path, target: str) -> None:
    with serve(folder) as (url, server):
        server.faults["file"] = [redirect(target)] * 9
        with pytest.raises(FileNotFoundError, match=r"/file: the server answers 302 ") as error:
            quick().read(f"{url}/file", max_bytes=10**6)
        assert server.gets["file"] == 1
    assert "secret" not in str(error.value)


@pytest.mark.timeout(30)
def test_redirects_carry_no_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a proxy's password would be, where the second host is not behind the proxy."""
    seen: list[dict[str, str]] = []

    def note(request: BaseHTTPRequestHandler, data: bytes) -> None:
        seen.append(dict(request.headers))
        request.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + data)

    (folder / "other").write_bytes(CONTENT)
    with serve(folder) as (url, server):
        monkeypatch.setenv("http_proxy", url.replace("http://", "http://me:secret@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        server.faults["http://elsewhere.invalid/file"] = [redirect(f"{url}/other")]
        (folder / "http:" / "elsewhere.invalid").mkdir(parents=True)
        (folder / "http:" / "elsewhere.invalid" / "file").write_bytes(b"")
        server.faults["other"] = [note]
        assert quick().read("http://elsewhere.invalid/file", max_bytes=10**6) == CONTENT
    assert seen
    assert not {name.lower() for name in seen[0]} & {"authorization", "proxy-authorization", "cookie"}


@pytest.mark.timeout(30)
def test_https_does_not_lead_to_http(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server speaks plain http; what the downloader takes for https is its class of connections."""
    monkeypatch.setattr(http.client, "HTTPSConnection", http.client.HTTPConnection)
    with serve(folder) as (url, server):
        secure = url.replace("http:", "https:")
        assert quick().read(f"{secure}/file", max_bytes=10**6) == CONTENT
        server.faults["file"] = [redirect(f"{url}/file"), redirect(f"{secure}/file")]
        with pytest.raises(FileNotFoundError, match=r"sends us on to http://127.*Only https"):
            quick().read(f"{secure}/file", max_bytes=10**6)
        assert quick().read(f"{secure}/file", max_bytes=10**6) == CONTENT


@pytest.mark.timeout(30)
def test_a_redirected_question_for_headers_stays_one(folder: Path) -> None:
    with serve(folder) as (url, server):
        server.moved["file"] = f"{url}/there"
        (folder / "there").write_bytes(CONTENT)
        assert quick().head_problem(f"{url}/file", size=len(CONTENT)) is None
        assert not server.gets


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"source at host: a user and password") as error:
        is_url("https://me:secret@host/shards")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("source", ["pipe:cat x", "file:///etc/passwd", "file:/etc", "s3://b/x", "ftp://h/x"])
def test_other_schemes_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="must be a folder, or a URL"):
        is_url(source)


def test_folders_and_urls_are_told_apart() -> None:
    assert is_url("https://host/x")
    assert not is_url("/data/x")
    assert not is_url("data/x")

"""Files behind http(s): time-outs, retries that wait longer each time, and the checksum on arrival."""

import hashlib
import http.client
import io
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SCHEMES = ("http://", "https://")
MIN_RATE = 1000  # bytes a second; a server that sends less is as good as silent

_CHUNK = 1 << 20
_TRANSIENT_STATUS = (408, 425, 429)  # and every 5xx; the other 4xx will not change by asking again

log = logging.getLogger(__name__)
T = TypeVar("T")


def is_url(location: str) -> bool:
    """Whether a source is remote. A scheme other than http(s) is refused rather than taken for a folder."""
    if location.startswith(SCHEMES):
        host = urlsplit(location).netloc
        if "@" in host:
            raise ValueError(
                f"source at {host.rpartition('@')[2]}: a user and password in a URL are not sent, and would "
                "stand in recipes and logs. Take a URL that needs none, or copy the folder."
            )
        return True
    if "://" in location or location.startswith(("pipe:", "file:")):
        raise ValueError(f"source {location!r}: must be a folder, or a URL with one of {', '.join(SCHEMES)}.")
    return False


@dataclass(frozen=True, kw_only=True)
class Downloader:
    """GET and HEAD; all times are in seconds."""

    timeout: float = 30.0  # without a byte, after which a connection is given up
    attempts: int = 5  # how often a request is tried before the run stops
    backoff: float = 0.5  # before the second attempt; doubled before each further one
    patience: float = 60.0  # of waiting, after which one that brought less than `MIN_RATE` is given up

    def read(self, url: str, *, max_bytes: int) -> bytes:
        """The content of a small file, which may have `max_bytes`."""

        def read() -> bytes:
            with self._open(url, "GET") as response:
                content = response.read(max_bytes + 1)
                missing = response.length  # None where none was stated
            if len(content) > max_bytes:
                raise ValueError(
                    f"{url} has more than {max_bytes:,} bytes, the most that is read of such a file. Is it "
                    "a file of `make shards`? One of many more shards is to be made as several sources."
                )
            if missing:
                raise OSError(f"{len(content)} bytes arrived, and {missing} more were announced")
            return content

        return self._with_retries(read, url)

    def head_problem(self, url: str, *, size: int) -> str | None:
        """What is wrong with a remote file as far as its headers tell, else None."""

        def head() -> str | None:
            with self._open(url, "HEAD") as response:
                length = response.headers.get("Content-Length")
            fits = length in (None, str(size))
            return None if fits else f"{url}: {length} bytes, but the index says {size}"

        try:
            return self._with_retries(head, url)
        except OSError as error:
            return str(error)

    def save(self, url: str, file: IO[bytes], *, size: int, sha256: str) -> None:
        """Write a remote file over `file`; raise unless it is the one the index names."""

        def save() -> None:
            file.seek(0)
            digest, received = hashlib.sha256(), 0
            with self._open(url, "GET") as response:
                while received <= size and (chunk := response.read(_CHUNK)):
                    received += len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
            file.truncate(size)
            file.flush()
            if received != size:
                raise OSError(f"{received} bytes arrived, but the index says {size}")
            if digest.hexdigest() != sha256:
                raise OSError(f"the content has sha256 {digest.hexdigest()}, but the index says {sha256}")

        self._with_retries(save, url)

    def _open(self, url: str, method: str) -> http.client.HTTPResponse:
        assert url.startswith(SCHEMES)  # urllib would also open file: and ftp:
        request = urllib.request.Request(url, method=method)
        opener = urllib.request.OpenerDirector()  # of one's own: the usual one also opens file: and ftp:
        for handler in (
            urllib.request.ProxyHandler(),
            _Http(self.patience),
            _Redirects(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            opener.add_handler(handler)
        response: http.client.HTTPResponse = opener.open(request, timeout=self.timeout)
        return response

    def _with_retries(self, action: Callable[[], T], url: str) -> T:
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.backoff * 2 ** (attempt - 1))
            try:
                return action()
            except urllib.error.HTTPError as error:
                error.close()  # it is the response too, with its socket
                last: Exception = error
                if error.code < 500 and error.code not in _TRANSIENT_STATUS:
                    raise FileNotFoundError(
                        f"{url}: the server answers {error.code} {error.reason}"
                    ) from None
            except (OSError, http.client.HTTPException) as error:
                last = error
            log.warning("%s: attempt %d of %d failed: %s", url, attempt + 1, self.attempts, last)
        raise OSError(f"{url}: {self.attempts} attempts failed; the last one with: {last}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within http(s), never from https to http.

    No header goes with them: what proves to one host who asks is not for another. HEAD stays HEAD.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        allowed = ("https",) if old.scheme == "https" else ("http", "https")
        if new.scheme not in allowed or "@" in new.netloc:
            target = f"{new.scheme}://{new.netloc.rpartition('@')[2]}{new.path}"
            reason = (
                f"and sends us on to {target}. Only {' and '.join(allowed)} without a password is followed "
                "from there: give the URL where the files are, or copy the folder"
            )
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return urllib.request.Request(newurl, method=req.get_method(), unverifiable=True)


class _Http(urllib.request.HTTPHandler):
    """Opens http and https, with responses that keep up `MIN_RATE`."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.patience = patience

    https_request = urllib.request.HTTPHandler.http_request  # the same headers for both

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connect(host: str, **options: Any) -> http.client.HTTPConnection:
            secure = req.type == "https"
            connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(
                host, **options
            )
            connection.response_class = partial(_Response, patience=self.patience)  # type: ignore[assignment]
            return connection

        return self.do_open(connect, req)

    https_open = http_open


class _Response(http.client.HTTPResponse):
    """A response whose every byte, headers included, is read through `_Paced`."""

    def __init__(self, sock: Any, *args: Any, patience: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Paced(self.fp.detach(), patience))


class _Paced(io.RawIOBase):
    """A stream that fails where less than `MIN_RATE` arrives over `patience` seconds of waiting.

    The time-out of a socket begins anew with every byte: alone, it would wait days for one byte now and then.
    """

    def __init__(self, raw: io.RawIOBase, patience: float) -> None:
        self._raw, self._patience = raw, patience
        self._waited, self._received = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        start = time.monotonic()
        count = self._raw.readinto(buffer)
        self._waited += time.monotonic() - start
        self._received += count or 0
        if count and self._waited >= self._patience:
            if self._received < MIN_RATE * self._waited:
                raise TimeoutError(
                    f"{self._received} bytes in {self._waited:.1f} s; the least is {MIN_RATE} bytes a second"
                )
            self._waited, self._received = 0.0, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()

"""Files behind http(s): time-outs, retries that wait longer each time, and the checksum on arrival."""

import hashlib
import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, TypeVar

SCHEMES = ("http://", "https://")

_CHUNK = 1 << 20
_TRANSIENT_STATUS = (408, 425, 429)  # and every 5xx; the other 4xx will not change by asking again

log = logging.getLogger(__name__)
T = TypeVar("T")


def is_url(location: str) -> bool:
    """Whether a source is remote. A scheme other than http(s) is refused rather than taken for a folder."""
    if location.startswith(SCHEMES):
        return True
    if "://" in location or location.startswith(("pipe:", "file:")):
        raise ValueError(f"source {location!r}: must be a folder, or a URL with one of {', '.join(SCHEMES)}.")
    return False


class Downloader:
    """GET and HEAD with time-outs, and retries that wait longer each time.

    Args:
        timeout: Seconds without a byte after which a connection is given up.
        attempts: How often a request is tried before the run stops.
        backoff: Seconds before the second attempt; doubled before each further one.
    """

    def __init__(self, *, timeout: float = 30.0, attempts: int = 5, backoff: float = 0.5) -> None:
        self.timeout = timeout
        self.attempts = attempts
        self.backoff = backoff

    def read(self, url: str) -> bytes:
        """The content of a small file."""

        def read() -> bytes:
            with self._open(url, "GET") as response:
                return response.read()

        return self._with_retries(read, url)

    def head_problem(self, url: str, *, size: int) -> str | None:
        """What is wrong with a remote file as far as its headers tell, else None."""

        def head() -> str | None:
            with self._open(url, "HEAD") as response:
                length = response.headers.get("Content-Length")
            return (
                f"{url}: {length} bytes, but the index says {size}"
                if length not in (None, str(size))
                else None
            )

        try:
            return self._with_retries(head, url)
        except OSError as error:
            return str(error)

    def save(self, url: str, file: IO[bytes], *, size: int, sha256: str) -> None:
        """Write a remote file over `file`; raise unless it is the one the index names."""
        self._with_retries(lambda: self._save_once(url, file, size=size, sha256=sha256), url)

    def _save_once(self, url: str, file: IO[bytes], *, size: int, sha256: str) -> None:
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

    def _open(self, url: str, method: str) -> http.client.HTTPResponse:
        assert url.startswith(SCHEMES)  # urllib would also open file: and ftp:
        request = urllib.request.Request(url, method=method)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self.timeout)
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

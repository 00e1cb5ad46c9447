"""The verb: what it refuses before it loads anything, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import veca.page
from veca import Veca

SERVE = "import sys; from veca.cli.main import main; sys.argv[0] = 'veca'; main()"


def test_without_the_model_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(veca.page, "require_extra", lambda *names: None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FileNotFoundError, match=r"no model at nowhere\. Give a folder"):
        veca.page.page("nowhere")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("port", [99999, 0, -1])
def test_a_port_that_there_is_not_is_refused_before_anything_loads(port: int) -> None:
    with pytest.raises(ValueError, match=rf"port must be from 1 to 65535; got {port}\. Try 7860\."):
        veca.page.page("no-model", port=port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left_behind(
    tiny_student: Veca, tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("gradio", reason="the page extra is not installed", exc_type=ImportError)
    tiny_student.save_pretrained(tmp_path / "model")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "page", "--model", str(tmp_path / "model"), "--port", str(port)],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("http://127.0.0.1"):
                break
        assert process.poll() is None, "".join(lines)
        assert any(temporary.iterdir())
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 0, rest
        assert "Traceback" not in rest
        assert not any(temporary.iterdir())
    finally:
        process.kill()
        process.communicate()

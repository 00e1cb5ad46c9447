"""`veca page`: a local page where one moves the budget and sees what it does."""

import os
import signal
import tempfile
from contextlib import suppress
from types import FrameType

from veca.checkpoint import load_model
from veca.utils.imports import require_extra
from veca.utils.precision import FLOAT32, InferencePrecision

_PORT = 7860


def page(
    model: str = "nano",
    *,
    port: int = _PORT,
    host: str = "127.0.0.1",
    precision: InferencePrecision = FLOAT32,
) -> None:
    """Serve a page where one moves the budget and sees features, cores and cost; Ctrl-C or SIGTERM ends it.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a packaged model.
        port: Port to listen on.
        host: Address to listen on. The default is reached from this machine only, 0.0.0.0 from others too.
        precision: 32-true; bf16-mixed takes less time on CPUs that multiply bf16; auto is bf16-mixed there.
    """
    if not 0 < port < 2**16:
        raise ValueError(f"port must be from 1 to 65535; got {port}. Try {_PORT}.")
    require_extra("page", "gradio")
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="veca-page-") as folder:
            student = load_model(model)
            if student.size.in_channels != 3:
                raise ValueError(f"the page shows colour; {model} takes {student.size.in_channels} channels.")
            # Read when gradio is imported: no reports home, and its files where they can be removed.
            os.environ.update(
                GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder, HF_HUB_DISABLE_TELEMETRY="1"
            )
            from veca.page.app import serve

            serve(student, title=f"veca · {model}", host=host, port=port, precision=precision)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C, so that files are removed; once, so that they are even if asked twice."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt

"""`veca page`: serve the page on this machine."""

import os
import tempfile
from pathlib import Path

from veca.checkpoint import load_model
from veca.utils.extras import require_extra
from veca.utils.precision import FLOAT32, InferencePrecision

DEMO_MODEL = Path("demo/run/multires/checkpoints/last.ckpt")


def page(
    model: str | None = None,
    *,
    port: int = 7860,
    host: str = "127.0.0.1",
    precision: InferencePrecision = FLOAT32,
) -> None:
    """Serve a page where one moves the budget and sees features, cores and cost; Ctrl-C ends it.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id; else the demo's.
        port: Port to listen on.
        host: Address to listen on. The default is reached from this machine only, 0.0.0.0 from others too.
        precision: 32-true; bf16-mixed takes less time on CPUs that multiply bf16; auto is bf16-mixed there.
    """
    require_extra("page", "gradio")
    source = model or _demo_model()
    student = load_model(source)
    if student.size.in_channels != 3:
        raise ValueError(f"the page shows colour images; {source} takes {student.size.in_channels} channels.")
    with tempfile.TemporaryDirectory(prefix="veca-page-") as folder:
        # gradio reads these when it is imported: no reports home, and its files where they can be removed.
        os.environ.update(
            GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder, HF_HUB_DISABLE_TELEMETRY="1"
        )
        from veca.page.serving import serve

        serve(student, title=f"veca · {source}", host=host, port=port, precision=precision)


def _demo_model() -> str:
    if not DEMO_MODEL.is_file():
        raise FileNotFoundError(
            f"there is no demo model at {DEMO_MODEL}. Run `make demo`, or name a model: veca page --model M."
        )
    return str(DEMO_MODEL)

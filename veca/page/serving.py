"""The page as a server."""

import gradio as gr

from veca.model import Veca
from veca.page.app import CSS, MAX_UPLOAD, build_page
from veca.utils.precision import FLOAT32, InferencePrecision


def serve(
    model: Veca,
    *,
    title: str,
    host: str,
    port: int,
    precision: InferencePrecision = FLOAT32,
    wait: bool = True,
) -> gr.Blocks:
    """Serve until interrupted, or return at once when not to `wait`."""
    page = build_page(model, title=title, precision=precision)
    # Fonts of the visitor's machine: others would be fetched from elsewhere.
    theme = gr.themes.Default(primary_hue="orange", font=["system-ui", "sans-serif"], font_mono=["monospace"])
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            max_file_size=MAX_UPLOAD,
            ssr_mode=False,
            footer_links=[],
            enable_monitoring=False,
            theme=theme,
            css=CSS,
        )
    except OSError as error:
        raise OSError(f"port {port} cannot be used ({error}). Try --port {port + 1}.") from None
    print(f"{address} (Ctrl-C ends it)")
    if wait:
        page.block_thread()
    return page

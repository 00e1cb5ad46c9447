"""The page: components, and what happens when one is touched. Import only where gradio is installed.

Nothing a visitor brings is kept: an upload is read and deleted in the same request, the picture lives in the
visitor's session, and what gradio writes to show the results lies in a folder that is emptied every minute
and removed at the end.
"""

from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from veca.data.decode import BadImage, decode
from veca.data.folders import read_file, read_named
from veca.model import Veca
from veca.page.pictures import SHOWN, Choice, core_at, cost_table, draw_sides
from veca.page.traces import Visit, cost, sample_images
from veca.utils.precision import InferencePrecision

SIDES = (8, 16, 24, 32)  # of the view, in patches: 128, 256, 384 and 512 pixels
MAX_UPLOAD = "20mb"
KEPT_SECONDS = 60
VISIT_SECONDS = 1800
LONGEST_SIDE = 2048

Parts = dict[str, Any]  # components by name

CSS = """
.gradio-container {max-width: 1560px !important; margin: 0 auto !important}
footer {display: none !important}
#message {min-height: 0} #message .error {color: #b42318; font-weight: 600}
.cost .share {margin-bottom: 4px} .cost .share b {font-size: 1.5em}
.cost .bar {height: 6px; border-radius: 3px; background: #e4e4e7; overflow: hidden; margin-bottom: 6px}
.cost .bar div {height: 100%; background: #ea580c}
.cost table {width: 100%; font-variant-numeric: tabular-nums; border: 0; margin: 0}
.cost table, .cost tr, .cost td {border: 0 !important} .cost td {padding: 1px 0 !important}
.cost td + td {text-align: right}
.caption {min-height: 0; margin-bottom: -12px} .caption b {margin-right: .4em} .caption span {opacity: .6}
.touch img {cursor: crosshair}
"""


def serve(
    model: Veca,
    *,
    title: str,
    host: str,
    port: int,
    precision: InferencePrecision,
) -> None:
    """Serve until interrupted."""
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
    page.block_thread()


def build_page(model: Veca, *, title: str, precision: InferencePrecision) -> gr.Blocks:
    """The page of one model."""
    samples = sample_images()
    page = gr.Blocks(title=title, analytics_enabled=False, fill_width=True, delete_cache=(KEPT_SECONDS,) * 2)
    with page:
        gr.Markdown(f"## {title}\nOne set of weights at two budgets. Click a patch or a core.")
        with gr.Row():
            controls = _controls(model, list(samples))
            sides = [_side(model, "A", model.budgets[0]), _side(model, "B", model.budgets[-1])]
        _wire(page, model, controls, sides, samples, precision)
    return page


_SHOW: dict[str, Any] = {"interactive": False, "show_label": False, "buttons": [], "format": "png"}
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_CAPTIONS = {
    "dense": ("dense features", "click a patch"),
    "similarity": ("similarity", "to the chosen patch"),
    "cores": ("each core’s attention", "click one"),
    "paths": ("paths of the cores", "by layer"),
}


def _controls(model: Veca, samples: list[str]) -> Parts:
    """What both halves share."""
    depth, patch = model.size.depth, model.size.patch_size
    sizes = [patches * patch for patches in SIDES]
    with gr.Column(scale=2, min_width=230):
        _caption("your image", "drop a file, or click")  # above the box: gradio's label lies on its icon
        parts: Parts = {}
        parts["upload"] = gr.File(show_label=False, file_types=["image"], height=130, elem_id="upload")
        parts["sample"] = gr.Dropdown(samples, value=samples[0], label="or pick a sample")
        parts["message"] = gr.HTML("", elem_id="message")
        parts["resolution"] = gr.Radio(sizes, value=sizes[1], label="resolution (pixels)")
        parts["layer"] = gr.Slider(1, depth, value=depth, step=1, label="layer of the core maps")
        _caption("what the model sees")
        parts["seen"] = gr.Image(elem_id="seen", **_SHOW)
    return parts


def _side(model: Veca, name: str, budget: int) -> Parts:
    """One half of the page."""
    group, most = model.size.core_group, model.size.num_cores
    label = f"budget {name} (active cores)"
    parts: Parts = {}
    with gr.Column(scale=4, min_width=420):
        place = f"budget-{name}"
        parts["budget"] = gr.Slider(group, most, value=budget, step=group, label=label, elem_id=place)
        parts["table"] = gr.HTML(elem_id=f"cost-{name}")
        for kinds in (("dense", "similarity"), ("cores", "paths")):
            with gr.Row():
                for kind in kinds:
                    touched = [] if kind == "paths" else ["touch"]
                    with gr.Column(min_width=180):
                        _caption(*_CAPTIONS[kind])
                        parts[kind] = gr.Image(elem_id=f"{kind}-{name}", elem_classes=touched, **_SHOW)
    return parts


def _caption(title: str, hint: str = "") -> None:
    gr.HTML(f"<b>{title}</b><span>{hint}</span>", elem_classes=["caption"])


def _wire(
    page: gr.Blocks,
    model: Veca,
    controls: Parts,
    sides: list[Parts],
    samples: dict[str, Image.Image | Path],
    precision: InferencePrecision,
) -> None:
    """Every touch changes the visit or the choice, then everything is drawn again from them."""
    visit = gr.State(None, time_to_live=VISIT_SECONDS)
    choice = gr.State(Choice(layer=model.size.depth - 1))
    shown = [controls["seen"], *(side[name] for side in sides for name in ("table", *_CAPTIONS))]
    sliders = [controls["resolution"], *(side["budget"] for side in sides)]
    given = [visit, choice, *sliders]

    def redraw(visit: Visit | None, choice: Choice, resolution: int, *budgets: float | None) -> list[Any]:
        if visit is None:
            raise gr.Error("This visit has ended. Reload the page.", print_exception=False)
        chosen = [_nearest_budget(model, budget) for budget in budgets]
        trace = partial(visit.trace, model, resolution=resolution, precision=precision)
        traces = [trace(budget=budget) for budget in chosen]
        view = visit.view(resolution)
        sides = draw_sides(view, traces, choice, num_cores=model.size.num_cores)
        outputs: list[Any] = [view.resize(SHOWN, Image.Resampling.BICUBIC)]
        for found, budget, pictures in zip(traces, chosen, sides, strict=True):
            price = cost(model.size, resolution=resolution, budget=budget)
            outputs += [cost_table(price, found, budget=budget), *pictures]
        return outputs

    def on(event: Any, change: Any, inputs: Any, outputs: Any) -> None:
        event(change, inputs, outputs, **_QUIET).then(redraw, given, shown, **_QUIET)

    def open_sample(name: str) -> tuple[str, Visit]:
        sample = samples[name]
        return "", Visit(Image.fromarray(decode(read_named(sample))) if isinstance(sample, Path) else sample)

    for event in (page.load, controls["sample"].input):
        on(event, open_sample, controls["sample"], [controls["message"], visit])
    opened = [controls["upload"], controls["message"], visit]
    on(controls["upload"].upload, _open_upload, [controls["upload"], visit], opened)
    layers = [choice, controls["layer"]]
    on(controls["layer"].change, lambda choice, layer: choice._replace(layer=int(layer) - 1), layers, choice)
    for control in sliders:
        # Of a slider on the move only the last position is drawn.
        control.change(redraw, given, shown, trigger_mode="always_last", **_QUIET)
    for side in sides:
        on(side["dense"].select, _pick_patch, choice, choice)
        on(side["similarity"].select, _pick_patch, choice, choice)
        on(side["cores"].select, _pick_core, [choice, side["budget"]], choice)


def _nearest_budget(model: Veca, typed: float | None) -> int:
    """The box beside a slider takes any number, or none."""
    return min(model.budgets, key=lambda budget: abs(budget - (typed or 0)))


def _open_upload(path: str, visit: Visit) -> tuple[None, str, Visit]:
    """Read the file and delete it; a file that is no image leaves the page as it was, with a message."""
    file = Path(path)
    try:
        image = Image.fromarray(decode(read_file(file)))
    except BadImage as error:
        problem = f"{escape(file.name)} cannot be used. {escape(str(error))}"
        return None, f'<div class="error">{problem}</div>', visit
    finally:
        file.unlink(missing_ok=True)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return None, "", Visit(image)


def _pick_patch(choice: Choice, event: gr.SelectData) -> Choice:
    x, y = event.index
    return choice._replace(x=x / SHOWN[0], y=y / SHOWN[1])


def _pick_core(choice: Choice, budget: float, event: gr.SelectData) -> Choice:
    core = core_at(*event.index, num_cores=int(budget))
    return choice if core is None else choice._replace(core=core)

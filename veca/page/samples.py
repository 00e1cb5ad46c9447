"""Pictures to start with: one drawn here, and a few of the demo's sample set where it was made."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 512
DEMO_IMAGES = Path("demo/sample/images/val")
_NUM_DEMO = 3


Samples = dict[str, Image.Image | Path]


def sample_images() -> Samples:
    """Names and pictures; those of the demo are read when they are asked for."""
    found: Samples = {"landscape": landscape()}
    demo = sorted(DEMO_IMAGES.glob("*/*"))
    for path in demo[:: max(1, len(demo) // _NUM_DEMO)]:
        found[f"demo: {path.parent.name}"] = path
    return found


def landscape() -> Image.Image:
    """Sky, sun, hills, a house and trees."""
    share = np.linspace(0, 1, SIDE)[:, None, None]
    sky = (1 - share) * np.array((96, 158, 220)) + share * np.array((246, 214, 170))
    picture = Image.fromarray(np.broadcast_to(sky, (SIDE, SIDE, 3)).round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((372, 60, 448, 136), fill=(255, 238, 150))
    draw.polygon(
        [(0, 300), (120, 190), (260, 300), (390, 170), (512, 290), (512, 512), (0, 512)], fill=(98, 112, 140)
    )
    draw.ellipse((-220, 280, 380, 720), fill=(86, 140, 70))
    draw.ellipse((200, 300, 760, 760), fill=(110, 165, 80))
    draw.rectangle((300, 300, 400, 380), fill=(205, 130, 96))
    draw.polygon([(288, 302), (350, 246), (412, 302)], fill=(120, 52, 44))
    draw.rectangle((340, 335, 364, 380), fill=(70, 44, 34))
    draw.rectangle((312, 318, 332, 340), fill=(240, 228, 160))
    for x, y, size in ((90, 350, 60), (160, 392, 76), (456, 380, 54)):
        draw.rectangle((x - size // 10, y, x + size // 10, y + size), fill=(92, 62, 40))
        draw.ellipse((x - size // 2, y - size, x + size // 2, y + size // 4), fill=(40, 98, 48))
    # Soft edges and a little grain: flat colours are nothing a model has ever seen.
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.2)), dtype=np.float32)
    grain = np.random.default_rng(1).normal(0, 5, (SIDE, SIDE, 1))
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))

"""Pictures to start with: two drawn here, and a few of the demo's sample set where it was made."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 512
DEMO_IMAGES = Path("demo/sample/images/val")
_NUM_DEMO = 3


Samples = dict[str, Image.Image | Path]


def sample_images() -> Samples:
    """Names and pictures; those of the demo are read when they are asked for."""
    found: Samples = {"landscape": landscape(), "table": table()}
    demo = sorted(DEMO_IMAGES.glob("*/*"))
    for path in demo[:: max(1, len(demo) // _NUM_DEMO)]:
        found[f"demo: {path.parent.name}"] = path
    return found


def landscape() -> Image.Image:
    """Sky, sun, hills, a house and trees."""
    picture = _gradient((96, 158, 220), (246, 214, 170))
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
    return _finish(picture, seed=1)


def table() -> Image.Image:
    """Balls, a cup and a book on a table."""
    picture = _gradient((206, 200, 190), (160, 150, 140))
    draw = ImageDraw.Draw(picture)
    draw.polygon([(0, 300), (512, 280), (512, 512), (0, 512)], fill=(140, 92, 58))
    for y in range(310, 512, 34):
        draw.line([(0, y), (512, y - 18)], fill=(122, 78, 48), width=3)
    draw.polygon([(40, 400), (190, 380), (220, 440), (60, 466)], fill=(52, 84, 150))
    draw.polygon([(60, 466), (220, 440), (220, 454), (62, 480)], fill=(236, 230, 214))
    for x, y, radius, colour in ((300, 360, 62, (200, 48, 44)), (180, 330, 40, (236, 186, 40))):
        _ball(draw, x, y, radius, colour)
    draw.rectangle((390, 270, 460, 372), fill=(236, 238, 240))
    draw.ellipse((390, 258, 460, 284), fill=(96, 60, 40), outline=(236, 238, 240), width=4)
    draw.arc((446, 290, 494, 346), -100, 100, fill=(236, 238, 240), width=9)
    return _finish(picture, seed=2)


def _ball(draw: ImageDraw.ImageDraw, x: int, y: int, radius: int, colour: tuple[int, int, int]) -> None:
    draw.ellipse((x - radius, y + radius * 0.7, x + radius * 1.3, y + radius * 1.2), fill=(96, 62, 40))
    for step in range(radius, 0, -2):
        light = 1 - step / radius
        shade = tuple(round(channel + (255 - channel) * 0.6 * light**2) for channel in colour)
        shift = radius * 0.35 * light
        draw.ellipse((x - step - shift, y - step - shift, x + step - shift, y + step - shift), fill=shade)


def _gradient(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    share = np.linspace(0, 1, SIDE)[:, None, None]
    rows = (1 - share) * np.array(top) + share * np.array(bottom)
    return Image.fromarray(np.broadcast_to(rows, (SIDE, SIDE, 3)).round().astype(np.uint8))


def _finish(picture: Image.Image, *, seed: int) -> Image.Image:
    """Soft edges and a little grain: flat colours are nothing a model has ever seen."""
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.2)), dtype=np.float32)
    grain = np.random.default_rng(seed).normal(0, 5, (SIDE, SIDE, 1))
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))

"""The figure at the top of the README: one photo at three budgets, features as colour, and what each costs.

    veca data sample --out sample --count 16 --size 512 --seed 3
    python docs/elastic.py nano sample/images/train/bowl/000000.jpg docs/elastic.png

The maps share one PCA, so that a colour means the same in all of them. The photo is generated, so it may be
shown anywhere; the costs are counted, not measured, so that the figure is the same on every machine.
"""

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from veca.figures.inputs import dense_features, open_models, read_view, veca_of
from veca.figures.sheet import Tile, TileRow, draw_sheet, save
from veca.flops import student_flops
from veca.model import Veca
from veca.utils.maps import joint_colours

RESOLUTION = 512
BUDGETS = (8, 32, 64)


def draw(model: str, photo: Path, out: Path) -> None:
    """The photo beside the features of each budget."""
    (probed,) = open_models(model)
    size = veca_of(probed).size
    view = read_view(photo, resolution=RESOLUTION)
    patches = [dense_features(probed, view, budget=budget)[0] for budget in BUDGETS]
    side = RESOLUTION // size.patch_size
    colours = [part.reshape(side, side, 3) for part in joint_colours(patches, method="pca")]
    with torch.device("meta"):
        counted = Veca(**size.as_dict()).eval()
    columns = [f"{RESOLUTION} × {RESOLUTION} pixels\n{side**2:,} patches"]
    for budget in BUDGETS:
        pairs = (2 * budget * side**2 + budget**2) / side**4
        flops = student_flops(counted, resolution=RESOLUTION, budget=budget)
        columns.append(f"{budget} cores, {flops / 1e9:.1f} GFLOPs\nattention {pairs:.1%} of full")
    shown = F.avg_pool2d(view[0].float(), 4).round().byte()  # a small file
    row = TileRow("", [Tile(shown.permute(1, 2, 0).numpy()), *map(Tile, colours)])
    figure = draw_sheet([row], title="One set of weights, three budgets", columns=columns, side=1.6)
    save(figure, out)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

"""What the paper measured (arXiv 2605.12491), to stand beside what a probe measures here.

Accuracies and mIoU in percent, RMSE in metres; 256 pixels to classify, 512 for dense tasks. The columns are
the datasets by the names they have here.
"""

from veca.probes.results import Cell, is_share

_CLASSIFY = """
model    budget IN1K     INv2      ReaL  Places365 Food101 CIFAR-10 CIFAR-100 SUN397
DINOv3-B      – 83.56    74.92     88.65 55.39     94.47   98.32   90.25    77.59
DINOv2-Reg-B  – 83.44    74.75     88.18 54.81     92.87   98.45   90.65    76.85
VECA-B       64 81.93    72.25     87.87 55.82     92.44   97.65   87.09    76.60
VECA-B        8 79.99    69.18     86.45 55.30     90.04   96.76   84.71    75.35
"""
_CLASSIFY_FINE = """
model    budget Cars  Aircraft VOC07 DTD   Caltech101 Pets  CUB   Flowers
DINOv3-B      – 93.32 81.97    73.99 80.32 92.65      96.54 89.82 99.69
DINOv2-Reg-B  – 90.62 70.78    84.22 79.20 93.86      95.97 89.52 99.67
VECA-B       64 91.84 74.47    71.64 77.01 92.08      95.67 88.02 99.35
VECA-B        8 90.18 70.72    70.47 75.80 91.98      95.12 87.00 98.98
"""
_DENSE = """
model    budget VOC12 Context-60 ADE20K COCO-Stuff COCO-Object Cityscapes NYUv2 KITTI
DINOv3-B      – 87.50 57.74     51.35  48.41      64.65       71.06      .3684 2.6915
DINOv2-Reg-B  – 84.23 55.02     48.92  45.42      61.77       70.23      .3953 2.8307
VECA-B       64 87.07 57.46     50.69  47.92      63.58       69.54      .3705 2.7252
VECA-B        8 83.84 53.30     44.51  43.85      58.27       61.97      .4330 3.1877
"""
_SIZES = """
model    budget VOC12 ADE20K NYUv2
VECA-S       64 81.56 44.82  .4347
VECA-S        8 77.56 37.48  .4975
VECA-S+      64 84.12 46.55  .4252
VECA-S+       8 79.18 38.96  .4898
VECA-L       64 88.62 54.17  .3379
VECA-L        8 86.50 48.10  .3956
"""
_SIZES_CLASSIFY = """
model    budget IN1K
VECA-S       64 74.63
VECA-S        8 71.30
VECA-S+      64 77.03
VECA-S+       8 74.39
VECA-L       64 84.51
VECA-L        8 83.06
"""
_TABLES = {256: (_CLASSIFY, _CLASSIFY_FINE, _SIZES_CLASSIFY), 512: (_DENSE, _SIZES)}


def paper_cells(dataset: str, quantity: str) -> list[Cell]:
    """The paper's rows for a dataset of its; nothing for other data and other quantities."""
    if quantity not in ("top-1", "mAP", "mIoU", "RMSE"):
        return []
    cells = []
    for resolution, texts in _TABLES.items():
        for text in texts:
            header, *lines = (line.split() for line in text.strip().splitlines())
            for line in lines if dataset in header else ():
                value = float(line[header.index(dataset)]) / (100 if is_share(quantity) else 1)
                budget = None if line[1] == "–" else int(line[1])
                cells.append(Cell(f"paper: {line[0]}", budget, resolution, {quantity: value}))
    return cells

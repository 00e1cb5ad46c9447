"""What the paper measured (arXiv 2605.12491), to stand beside what a probe measures here.

Accuracies and mIoU in percent, RMSE in metres; 256 pixels to classify, 512 for dense tasks. The columns are
the datasets by the names they have here.
"""

from collections.abc import Collection

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
_CURVES = """
IN1K   VECA-S  74.63 74.22 74.04 73.89 73.73 73.52 72.87 71.30
IN1K   VECA-S+ 77.03 76.97 76.97 76.97 77.03 76.65 76.17 74.39
IN1K   VECA-B  81.93 81.84 81.79 81.71 81.63 81.51 81.09 79.99
IN1K   VECA-L  84.51 84.27 84.35 84.23 84.23 84.15 83.90 83.06
VOC12  VECA-S  81.56 81.45 81.51 81.40 81.00 81.06 80.40 77.56
VOC12  VECA-S+ 84.12 83.92 83.94 83.84 83.84 83.43 82.60 79.18
VOC12  VECA-B  87.07 86.94 86.91 86.85 86.72 86.34 85.37 83.84
VOC12  VECA-L  88.62 88.62 88.59 88.51 88.37 87.78 87.67 86.50
ADE20K VECA-S  44.82 44.80 44.53 43.87 43.98 43.23 41.20 37.48
ADE20K VECA-S+ 46.55 46.24 46.08 45.71 45.56 44.60 43.03 38.96
ADE20K VECA-B  50.69 50.40 50.63 50.53 49.49 49.44 47.52 44.51
ADE20K VECA-L  54.17 54.17 54.09 53.81 53.90 53.65 52.20 48.10
NYUv2  VECA-S  .4347 .4352 .4361 .4382 .4430 .4476 .4562 .4975
NYUv2  VECA-S+ .4252 .4259 .4270 .4299 .4327 .4375 .4453 .4898
NYUv2  VECA-B  .3705 .3751 .3748 .3754 .3789 .3829 .3965 .4330
NYUv2  VECA-L  .3379 .3398 .3407 .3412 .3432 .3474 .3563 .3956
"""
BUDGETS = (64, 56, 48, 40, 32, 24, 16, 8)
# (dataset, model): the elastic curve, at BUDGETS
CURVES = {
    (line.split()[0], line.split()[1]): [float(word) for word in line.split()[2:]]
    for line in _CURVES.strip().splitlines()
}
_TABLES = {256: (_CLASSIFY, _CLASSIFY_FINE), 512: (_DENSE,)}


def paper_cells(dataset: str, quantity: str, *, budgets: Collection[int | None] = ()) -> list[Cell]:
    """The paper's rows for a dataset of its; nothing for other data and other quantities.

    Of the elastic curves, `budgets` are shown beside the first and the last.
    """
    if quantity not in ("top-1", "mAP", "mIoU", "RMSE"):
        return []
    scale = 100 if is_share(quantity) else 1
    cells = []
    for resolution, texts in _TABLES.items():
        for text in texts:
            header, *lines = (line.split() for line in text.strip().splitlines())
            for name, word, *values in lines if dataset in header else ():
                budget = None if word == "–" else int(word)
                value = float(values[header.index(dataset) - 2]) / scale
                cells.append(Cell(f"paper: {name}", budget, resolution, {quantity: value}))
    shown = {(cell.name, cell.budget) for cell in cells}
    cells += [
        Cell(f"paper: {name}", budget, cells[0].resolution, {quantity: value / scale})
        for (data, name), values in CURVES.items()
        for budget, value in zip(BUDGETS, values, strict=True)
        if data == dataset
        and (budget in budgets or budget in (BUDGETS[0], BUDGETS[-1]))
        and (f"paper: {name}", budget) not in shown
    ]
    return cells

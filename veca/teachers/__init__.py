"""Frozen teachers: byte images in, `Targets` out (paper §3.3; the objective of distillation).

| class | what it is | needs |
|---|---|---|
| `TransformersTeacher` | DINOv3, DINOv2, ViT, CLIP, SigLIP, … by Hub id or folder | the weights |
| `EfficientNetTeacher` | a pretrained ImageNet CNN | two small packages, no Hub |
| `OfflineTeacher` | the DINOv3 architecture with seeded random weights | nothing |

Every teacher normalises by itself, answers on the student's patch-16 grid, stays in eval mode and takes
no gradient. A checkpoint never holds one. Where targets are stored (`data.targets`) there is none;
`CachedTargets` is how older recipes say so.
"""

from veca.teachers.base import CachedTargets, MicroBatch, Teacher
from veca.teachers.dinov3 import OfflineTeacher
from veca.teachers.efficientnet import EfficientNetTeacher
from veca.teachers.transformers import TransformersTeacher

__all__ = [
    "CachedTargets",
    "EfficientNetTeacher",
    "MicroBatch",
    "OfflineTeacher",
    "Teacher",
    "TransformersTeacher",
]

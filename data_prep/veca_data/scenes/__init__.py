"""Procedural scenes: solids on a floor, with the class, instance, depth and colour of every pixel.

shapes (signed distances) → march (rays) → layout (who stands where) → render (textures, light)

Only numpy, only element-wise float32 operations: a scene is a pure function of (seed, index, label, size).
"""

from veca_data.scenes.render import Scene, render_scene
from veca_data.scenes.shapes import CLASSES

__all__ = ["CLASSES", "Scene", "render_scene"]

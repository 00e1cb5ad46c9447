"""Global and dense features of many images, in files that anything can read.

images.py   what was named on the command line → images: files, folders, shards
views.py    an encoded image → the pixels the model sees
parts.py    the output folder: parts that are finished or absent, and their names
command.py  `veca features`: read, batch by size, run, write; a second call does what is left
"""

from veca.features.parts import Part, read_features, read_parts

__all__ = ["Part", "read_features", "read_parts"]

"""Pictures of what a model sees, and numbers about what its cores do.

maps.py      features and traces → colours, similarities, attention maps and paths, as arrays
drawing.py   those arrays on top of an image, with Pillow alone
inputs.py    models by name, images by path
colours.py   vectors of several maps → colours that mean the same in all of them
sheet.py     rows of tiles and panels of curves → PNG or SVG
pictures.py  contributions, cores, similarity, dense, paths
elastic.py cost.py   a metric, or FLOPs and latency, as curves
metrics.py matching.py looks.py analysis.py panels.py   the analysis: definitions, geometry, runs, plot
"""

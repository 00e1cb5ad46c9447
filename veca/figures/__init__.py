"""Pictures of what a model sees, and numbers about what its cores do (veca.utils.maps makes the arrays).

inputs.py    models by name, images by path, what the cores do with them
sheet.py     rows of tiles and panels of curves → PNG or SVG
pictures.py  contributions, cores, similarity, dense, paths
elastic.py cost.py   a metric, or FLOPs and latency, as curves
metrics.py analysis.py   the analysis: definitions, and runs with their plot
"""

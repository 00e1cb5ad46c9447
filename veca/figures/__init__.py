"""Pictures of what a model sees.

maps.py     features and traces → colours, similarities, attention maps and paths, as arrays
drawing.py  those arrays on top of an image
"""

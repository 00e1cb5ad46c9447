"""A model at one budget as a file that runs without this package.

graph.py    the forward pass as one graph with free batch, height and width
onnx_file.py   that graph as ONNX
check.py    the file, read back and compared with the model
command.py  `veca export`: write, read back, compare, then give the file its name
"""

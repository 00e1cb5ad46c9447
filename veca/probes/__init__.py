"""Evaluation of frozen features (method, section 6): what a backbone knows, without training it further.

backbones.py  what a probe can evaluate: Veca at a budget, random weights, raw pixels
folders.py    labelled class folders, checked and counted
features.py   images → one feature matrix, a batch at a time
progress.py   the progress bar
settings.py   the budgets and resolutions a probe runs, from the command line or from Python
results.py    what every probe leaves: a table to read and a JSON to keep
knn.py        nearest neighbours on the global feature
"""

"""Evaluation of frozen features (method, section 6): what a backbone knows, without training it further.

datasets/     labelled images, masks and depth maps, by folder or by name
scan.py       one reading of the data before any work: counts, problems, digest
views.py      which pixels a backbone sees, and where their labels lie
features.py   images → features on the disk, once per data, view, backbone and budget
heads.py      linear classifiers of many learning rates side by side, and the choice between them
dense.py      the same for heads on patches, and what segment and depth share
knn.py linear.py segment.py depth.py    the probes
sweep.py settings.py    every backbone at every budget and resolution, and the baselines beside them
results.py    what a probe leaves, what the paper measured, and the curve of both
"""

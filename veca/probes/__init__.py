"""Evaluation of frozen features (method, section 6): what a backbone knows, without training it further.

datasets/     labelled images, masks and depth maps, by folder or by name; one reading of them before any work
features.py   which pixels a backbone sees → features on the disk, once per data, view, backbone and budget
heads.py      linear classifiers of many learning rates side by side, and the choice between them
dense.py      the same for heads on patches, and what segment and depth share
classify.py segment.py depth.py    the probes
sweep.py      every backbone at every budget and resolution, and the baselines beside them
results.py    what a probe leaves, what the paper measured, and the curve of both
"""

"""Evaluation of frozen features (method, section 6): what a backbone knows, without training it further.

types.py      what the parts hand to each other
models.py networks.py   what a probe can evaluate: Veca at a budget, teachers, peers, random weights, pixels
datasets/     labelled images, masks and depth maps, by folder or by name
scan.py       one reading of the data before any work: counts, problems, digest
views.py      which pixels a backbone sees, and where their labels lie
features.py store.py    images → features on the disk, once per data, view, backbone and budget
choice.py     validation images, and the choice made from them
heads.py      linear classifiers of many learning rates side by side
dense.py densefit.py    the same for heads on patches
knn.py linear.py segment.py depth.py    the probes
sweep.py settings.py    every backbone at every budget and resolution, and the baselines beside them
results.py paper.py elastic.py     what a probe leaves, what the paper measured, and the curve of both
progress.py   the progress bar
"""

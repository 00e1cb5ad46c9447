"""Run by test_sweep.py in processes that Lightning starts: k-NN on two CPU devices."""

import sys
from pathlib import Path

from veca.probes.classify import knn

if __name__ == "__main__":
    model, data, out = sys.argv[1:]
    knn(model, data, budgets="4", resolutions="32", out=Path(out), seeds=0, devices=2)

"""`veca report RUN_DIR`: one HTML file about a run, which opens anywhere without a network.

stage.py   a run's folder → what is known about each stage
verdict.py what it comes to: does the student beat the constant, and do more cores help
views.py   snapshots → pictures, step by step
build.py   all of it → report.html, by way of templates/
"""

from veca.report.build import report

__all__ = ["report"]

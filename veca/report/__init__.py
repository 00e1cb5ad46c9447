"""`veca report RUN_DIR`: one HTML file about a run, which opens anywhere without a network.

stage.py     a run's folder → what is known about each stage
sights.py    snapshots → pictures, step by step
sections.py tables.py   one stage → HTML
document.py  all stages → report.html
"""

from veca.report.document import report

__all__ = ["report"]

"""The paper's claims in miniature: three small students, two seeds, one table (`veca mini`).

images (images.py) → shards → cached targets → fits → probes (plan.py, steps.py) → losses.py → table.py
"""

from veca.mini.command import mini

__all__ = ["mini"]

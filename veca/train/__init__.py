"""Training, joined by `distill.py`: teacher targets, student features, one loss, two optimizers.

budgets.py         which budget a step uses; what trainer, data and model must know of each other
ddp.py             how all ranks come to know it, and how they are started and ended
losses.py          the objective of distillation
distill.py         the step
callbacks.py       compiled graphs, what is logged of the step, and the guard against NaN
validation.py      losses over budgets × resolutions, beside the constant
run_dir.py checkpointing.py snapshots.py   a run's folder, and what is saved into it
preemption.py slurm.py        stopping on request, and the cluster
recipe.py          what a recipe says, checked all at once
"""

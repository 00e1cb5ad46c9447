"""Training, joined by `distill.py`: teacher targets, student features, one loss, two optimizers.

budgets.py         which budget a step uses, and how all ranks come to know it
losses.py          the objective of distillation
distill.py         the step
joining.py         what trainer, data and model must know of each other before it
callbacks.py       what is logged of it, and the guard against NaN
validation.py      losses over budgets × resolutions, beside the constant
compiling.py snapshots.py environment.py   callbacks
run_dir.py checkpointing.py   a run's folder, and what is saved into it
preemption.py slurm.py        stopping on request, and the cluster
recipe.py          what a recipe says, checked all at once
"""

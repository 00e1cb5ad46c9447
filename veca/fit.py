"""`veca fit|validate|test|predict`: LightningCLI over Distill and ShardDataModule.

The constructor signatures of those two are the schema of a recipe; this file adds what every run has: a
folder with loggers and checkpoints, a progress bar, and the safe reading of checkpoints.
"""

import inspect
import sys
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from veca.data.datamodule import ShardDataModule
from veca.distill import Distill, recipe_problems
from veca.optim.settings import Optimization
from veca.recipe import find_problems
from veca.run import ContinueMetrics, FeatureWriter, LastCheckpoint, RunProgress, run_loggers

QUIET = (  # warnings of Lightning that tell a user nothing
    r"Checkpoint directory .* exists and is not empty",  # a resumed run writes where it wrote
    r".isinstance\(treespec, LeafSpec\). is deprecated",
    r"\s*By default only one JsonargparseDeprecationWarning",
)
CHECKED = tuple(inspect.signature(recipe_problems).parameters)


class VecaCLI(LightningCLI):
    """One recipe, one run."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--wandb_project", type=str | None, default=None, help="Also log to Weights & Biases, here."
        )
        parser.add_argument(
            "--checkpoint_every", type=int, default=1000, help="Optimizer steps between two last.ckpt."
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        words = sys.argv[1:] if args is None else args
        assert isinstance(words, list)
        verb = self._subcommand_parsers.get(words[0] if words else "", parser)
        known = [action.dest for action in verb._actions]
        config, problems = find_problems(parser.parse_args, words, known_keys=known)
        if config is not None:
            problems += self._value_problems(config[config.subcommand])
        if problems:
            raise ValueError("the recipe cannot be used:\n" + "\n".join(f"- {line}" for line in problems))
        self.config = config

    def _value_problems(self, config: Namespace) -> list[str]:
        """Values that parse and cannot be right; neither student nor teacher is built to find them."""
        model = config.model
        values = {key: model[key] for key in CHECKED if key != "optimization"}
        problems = recipe_problems(optimization=Optimization(**model.optimization.as_dict()), **values)
        alone = ArgumentParser()
        alone.add_class_arguments(ShardDataModule, "data")
        try:
            alone.instantiate_classes(Namespace(data=config.data))
        except ValueError as error:
            problems.append(f"data: {error}")
        return problems

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config[self.subcommand]
        folder = Path(config.trainer.default_root_dir or "runs/unnamed")
        checkpoints = folder / "checkpoints"
        best = ModelCheckpoint(checkpoints, filename="best", monitor="val/loss", enable_version_counter=False)
        last = LastCheckpoint(checkpoints, every=config.checkpoint_every)
        callbacks = [*kwargs.get("callbacks", []), ContinueMetrics(), FeatureWriter(folder)]
        if config.trainer.enable_checkpointing is not False:
            callbacks += [best, last]
        if config.trainer.enable_progress_bar is not False:
            callbacks.append(RunProgress())
        kwargs["callbacks"] = callbacks
        trainer = super().instantiate_trainer(**kwargs)
        if config.trainer.logger is None and not config.trainer.fast_dev_run:
            trainer.loggers = run_loggers(folder, wandb_project=config.wandb_project)
        return trainer

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Whether checkpoints may run code is not the user's to choose: they may not."""
        fixed = {"weights_only", "return_predictions"}
        return {verb: skipped | fixed for verb, skipped in LightningCLI.subcommands().items()}

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = {**super()._prepare_subcommand_kwargs(subcommand), "weights_only": True}
        # Features are written batch by batch; returning them too would keep them all in memory.
        return kwargs | ({"return_predictions": False} if subcommand == "predict" else {})

    def _parse_ckpt_path(self) -> None:
        # Lightning would put the checkpoint's hyperparameters over the recipe; a recipe means what it says.
        pass


def main(args: list[str] | None) -> None:
    """Run one of Lightning's verbs with its arguments; None stands for the process's own command line."""
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
    VecaCLI(
        Distill,
        ShardDataModule,
        args=args,
        seed_everything_default=42,
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        parser_kwargs={
            name: {"parser_mode": "omegaconf", "exit_on_error": False}
            for name in ("fit", "validate", "test", "predict")
        }
        | {"exit_on_error": False},
    )

"""`veca fit|validate|test|predict`: LightningCLI over Distill and ShardDataModule.

Their constructor signatures are the schema of a recipe; this file adds what every run has, and a check of all
that can be known to fail before the teacher is loaded.
"""

import inspect
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt
from lightning.fabric.connector import _PRECISION_INPUT  # type: ignore[attr-defined]  # only private
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info

from veca.data.datamodule import ShardDataModule
from veca.data.index import open_sources
from veca.optim.settings import Optimization
from veca.train.budgets import batches_per_step, origin_problems
from veca.train.checkpointing import LastCheckpoint, RunCheckpoint, SafeCheckpointIO, last_path, newest_intact
from veca.train.distill import Distill
from veca.train.preemption import StopWhenAsked
from veca.train.recipe import find_problems, recipe_problems, refuse, trainer_problems
from veca.train.run_dir import (
    RunFiles,
    RunProgress,
    StudentSize,
    run_loggers,
    sole_run,
)
from veca.train.slurm import (
    cluster_problems,
    device_problems,
    is_main_process,
    num_devices,
    port_problems,
    slurm_environment,
)
from veca.train.snapshots import NUM_IMAGES, RecordEnvironment, Snapshots
from veca.utils.lightning_compat import ignore_warnings, leave_signals_alone
from veca.utils.precision import AUTO, recorded_precision, resolve_precision
from veca.utils.process import stop_signals
from veca.utils.recipes import spell_out_recipes

GROUPS = ("trainer", "model", "model.optimization", "data")
CHECKED = tuple(inspect.signature(recipe_problems).parameters)


class RunTrainer(Trainer):
    """Lightning's Trainer, for which `precision: auto` is a value of recipes.

    Args:
        precision: What to compute in; `auto` is bf16-mixed on GPUs and on CPUs that multiply bf16 (AMX,
            AVX512-BF16), 32-true elsewhere. The run's config.yaml says what it came to.
    """

    def __init__(
        self, *, precision: _PRECISION_INPUT | Literal["auto"] | None = None, **options: Any
    ) -> None:
        super().__init__(precision=precision, **options)  # type: ignore[arg-type]  # resolved by now


class VecaCLI(LightningCLI):
    """One recipe, one run."""

    def __init__(self, *args: Any, until_end: ExitStack, **kwargs: Any) -> None:
        self._until_end = until_end  # closes what the run holds
        self._ckpt_path: Path | None = None
        super().__init__(*args, **kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.stored", "model.stored", apply_on="instantiate")
        images = "Validation images whose features and core paths the report shows over time; 0 for none."
        for name, kind, default, text in (
            ("wandb_project", str | None, None, "Also log to Weights & Biases, here."),
            ("checkpoint_every", int, 1000, "Optimizer steps between two last.ckpt."),
            ("num_snapshot_images", NonNegativeInt, NUM_IMAGES, images),
        ):
            parser.add_argument(f"--{name}", type=kind, default=default, help=text)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        words = sys.argv[1:] if args is None else args
        assert isinstance(words, list)
        verb = self._subcommand_parsers.get(words[0] if words else "", parser)
        known = [action.dest for action in verb._actions]
        with TemporaryDirectory() as folder:
            spelled, missing = spell_out_recipes(words, Path(folder))
            config, problems = find_problems(parser.parse_args, spelled, known_keys=known)
            problems = missing + problems
        if config is not None:
            _move_stored_targets(config[config.subcommand])
            problems += self._value_problems(config[config.subcommand])
        refuse(problems)
        self.config = config

    def _value_problems(self, config: Namespace) -> list[str]:
        """Values that parse and cannot be right; neither student nor teacher is built to find them."""
        empty = [group for group in GROUPS if not isinstance(config.get(group), Namespace)]
        if empty:  # the parser takes a group without keys for a value of its own
            return [f"{group}: has no keys. Give some, or leave the line out." for group in empty]
        model, trainer = config.model, config.trainer
        values = {key: model[key] for key in CHECKED if key != "optimization"}
        problems = recipe_problems(optimization=Optimization(**model.optimization.as_dict()), **values)
        problems += origin_problems(model.teacher, config.data.targets)
        problems += trainer_problems(
            trainer, checkpoint_every=config.checkpoint_every, seed_everything=config.seed_everything
        )
        devices, world_size = {"accelerator": trainer.accelerator, "devices": trainer.devices}, 1
        if missing := device_problems(**devices):
            problems += missing
        elif trainer.num_nodes > 0:
            problems += cluster_problems(**devices, num_nodes=trainer.num_nodes)
            world_size = trainer.num_nodes * num_devices(**devices)
            problems += port_problems(world_size=world_size)
        problems += _ckpt_problems(config.ckpt_path, _run_folder(config) / "checkpoints")
        alone = ArgumentParser()
        alone.add_class_arguments(ShardDataModule, "data")
        try:
            problems += _data_problems(
                alone.instantiate_classes(Namespace(data=config.data)).data,
                world_size=world_size,
                accumulate=trainer.accumulate_grad_batches,
                global_batch_size=model.global_batch_size,
            )
        except (ValueError, OSError) as error:
            problems.append(f"data: {error}")
        return problems

    def before_instantiate_classes(self) -> None:
        """The last that is known before teacher and student are loaded: the folder, and where to go on."""
        config = self.config[self.subcommand]
        if self.subcommand == "fit" and is_main_process() and not config.trainer.fast_dev_run:
            self._until_end.enter_context(sole_run(self._folder))
        self._ckpt_path = _resolve_ckpt_path(
            config.ckpt_path, self._folder / "checkpoints", may_be_missing=self.subcommand == "fit"
        )
        if config.trainer.precision == AUTO:
            recorded = None if self._ckpt_path is None else recorded_precision(self._ckpt_path)
            config.trainer.precision = recorded or resolve_precision(
                AUTO, accelerator=config.trainer.accelerator
            )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config, given = self.config[self.subcommand], self.config_init[self.subcommand].trainer
        saves = config.trainer.enable_checkpointing is not False
        callbacks = [*_listed(given.callbacks), RunFiles(self._folder), RecordEnvironment(self._folder)]
        callbacks.append(Snapshots(self._folder, num_images=config.num_snapshot_images))
        if saves:
            callbacks += self._savers(config)
        else:
            stop_signals.let_go()
        if config.trainer.enable_progress_bar is not False:
            callbacks.append(RunProgress())
        if config.trainer.enable_model_summary is not False:
            callbacks.append(StudentSize())
        plugins = [*_listed(given.plugins), SafeCheckpointIO(), *slurm_environment()]
        kwargs |= {"callbacks": callbacks, "plugins": plugins, "enable_model_summary": False}
        trainer = super().instantiate_trainer(**kwargs)
        leave_signals_alone(trainer)
        if config.trainer.logger is None and not config.trainer.fast_dev_run:
            trainer.loggers = run_loggers(self._folder, wandb_project=config.wandb_project)
        return trainer

    @property
    def _folder(self) -> Path:
        return _run_folder(self.config[self.subcommand])

    def _savers(self, config: Namespace) -> list[Callback]:
        folder = self._folder / "checkpoints"
        best = RunCheckpoint(folder, filename="best", monitor="val/loss", enable_version_counter=False)
        last = LastCheckpoint(folder, every=config.checkpoint_every)
        return [best, last, StopWhenAsked(last_path(folder))]  # asked last, so that it saves what they did

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Whether checkpoints may run code is not the user's to choose: they may not."""
        fixed = {"weights_only", "return_predictions"}
        return {verb: skipped | fixed for verb, skipped in LightningCLI.subcommands().items()}

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        kwargs |= {"weights_only": True, "ckpt_path": self._ckpt_path}
        # Features are written batch by batch; returning them too would keep them all in memory.
        return kwargs | ({"return_predictions": False} if subcommand == "predict" else {})

    def _parse_ckpt_path(self) -> None:
        # Lightning would put the checkpoint's hyperparameters over the recipe; a recipe means what it says.
        pass


def _move_stored_targets(config: Namespace) -> None:
    """Read `model.teacher: CachedTargets`, as older recipes have it, as `data.targets`."""
    kind, path = config.get("model.teacher.class_path"), "model.teacher.init_args"
    if not kind or not kind.endswith(".CachedTargets") or config.get("data.targets") is not None:
        return
    config.data.targets, config.model.teacher = config[path], None
    if is_main_process():
        warnings.warn(
            "model.teacher: CachedTargets is now data.targets, with the same path, teacher, views and dtype. "
            "Write it so in the recipe, without model.teacher.",
            FutureWarning,
            stacklevel=2,
        )


def _data_problems(
    data: ShardDataModule, *, world_size: int, accumulate: int, global_batch_size: int | None
) -> list[str]:
    """Whether the data is there, and enough of it for every rank to make an optimizer step."""
    _ = data.stored  # raises unless the stored targets are there too
    samples = sum(source.weight * source.index.num_samples("train") for source in open_sources(data.sources))
    batch_size = max(data.resolutions.batch_sizes.values())
    if global_batch_size is not None:
        accumulate = batches_per_step(global_batch_size, per_pass=world_size * batch_size)
    step = world_size * batch_size * accumulate
    if not 0 < samples < step:
        return []
    other = "trainer.accumulate_grad_batches" if global_batch_size is None else "model.global_batch_size"
    return [
        f"data.sources = {data.sources}: an epoch has {samples:.0f} samples, but an optimizer step takes "
        f"{step}: batch_size {batch_size} × {world_size} ranks × {accumulate} batches. Lower "
        f"data.resolutions.batch_size or {other}, use fewer devices, or add data."
    ]


def _run_folder(config: Namespace) -> Path:
    return Path(config.trainer.default_root_dir or "runs/unnamed")


def _ckpt_problems(given: str | None, checkpoints: Path) -> list[str]:
    """A checkpoint to go on from that is not there; what `last` stands for is found later."""
    path = _named_checkpoint(given or "last", checkpoints)
    if given in (None, "last") or path.is_file():
        return []
    return [f"ckpt_path = {given}: there is no {path}. `last` finds a run's newest checkpoint."]


def _named_checkpoint(given: str, checkpoints: Path) -> Path:
    return checkpoints / "best.ckpt" if given == "best" else Path(given)


def _resolve_ckpt_path(given: str | None, checkpoints: Path, *, may_be_missing: bool) -> Path | None:
    """`last` is the newest intact checkpoint of the run's folder; where there is none yet, the beginning."""
    if given is None:
        return None
    path = _named_checkpoint(given, checkpoints)
    if given == "last":
        found = newest_intact(checkpoints)
        if found is None and may_be_missing:
            rank_zero_info(f"no checkpoint in {checkpoints} yet: the run starts from its beginning.")
            return None
        path = found or last_path(checkpoints)
        rank_zero_info(f"continuing from {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"ckpt_path = {given}: there is no {path}.")
    return path


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else [] if given is None else [given]


def main(args: list[str] | None) -> None:
    """Run one of Lightning's verbs with its arguments; None stands for the process's own command line."""
    ignore_warnings()
    fits = (sys.argv[1:] if args is None else args)[:1] == ["fit"]
    with ExitStack() as until_end:
        VecaCLI(
            Distill,
            ShardDataModule,
            trainer_class=RunTrainer,
            args=args,
            until_end=until_end,
            seed_everything_default=42,
            # A run's config.yaml is that of its fit; a later validate would put its own keys in its place.
            save_config_callback=SaveConfigCallback if fits else None,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            parser_kwargs={"exit_on_error": False}
            | {verb: {"parser_mode": "omegaconf", "exit_on_error": False} for verb in VecaCLI.subcommands()},
        )

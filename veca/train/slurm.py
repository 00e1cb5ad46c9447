"""SLURM, as a run sees it by its environment: what it was given, what does not fit, how to be run again."""

import os
import socket
import subprocess
from collections.abc import Mapping

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.device_parser import _parse_gpu_ids
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
_INTERACTIVE = ("bash", "interactive")  # job names for which Lightning leaves SLURM aside


def under_slurm(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a task of a SLURM job that Lightning takes its ranks from."""
    named = env.get("SLURM_JOB_NAME") not in _INTERACTIVE
    return "SLURM_NTASKS" in env and named and "TORCHELASTIC_RUN_ID" not in env


def slurm_environment() -> list[ClusterEnvironment]:
    """The plugin for a Trainer: Lightning's own handling of signals and requeueing is off."""
    if TorchElasticEnvironment.detect() or not under_slurm():
        return []
    return [SLURMEnvironment(auto_requeue=False)]


def is_main_process(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this is rank 0, told before the ranks know of each other."""
    if "RANK" in env:
        return int(env["RANK"]) == 0
    if under_slurm(env):
        return int(env.get("SLURM_PROCID", 0)) == 0
    return all(int(env.get(name, 0)) == 0 for name in ("NODE_RANK", "LOCAL_RANK"))


def cluster_problems(
    *, accelerator: str, devices: object, num_nodes: int, env: Mapping[str, str] = os.environ
) -> list[str]:
    """What the Trainer is told and SLURM gave, where they differ: Lightning would wait for ranks in vain."""
    if not under_slurm(env):
        return []
    tasks = int(env["SLURM_NTASKS"])
    if tasks > 1 and "SLURM_STEP_ID" not in env:
        return [f"this SLURM job has {tasks} tasks, but was not started with srun. Put `srun` before `veca`."]
    problems = []
    nodes = int(env.get("SLURM_NNODES", 1))
    if nodes != num_nodes:
        problems.append(
            f"trainer.num_nodes = {num_nodes}: SLURM gave {nodes} nodes. Set --trainer.num_nodes {nodes}."
        )
    if tasks > 1 and "SLURM_NTASKS_PER_NODE" not in env:
        return [*problems, f"--ntasks={tasks} does not say where. Give sbatch or srun --ntasks-per-node."]
    here = int(env.get("SLURM_NTASKS_PER_NODE", tasks))
    wanted = num_devices(accelerator=accelerator, devices=devices)
    if here != wanted:
        problems.append(
            f"trainer.devices = {devices} ({wanted} here): SLURM gave {here} tasks per node, and there is "
            f"one task per device. Set --trainer.devices {here}, or --ntasks-per-node={wanted}."
        )
    return problems


def device_problems(*, accelerator: object, devices: object) -> list[str]:
    """Devices that this machine does not have, or no Trainer takes."""
    if not isinstance(accelerator, str):  # an object of the user's own
        return []
    if accelerator not in ACCELERATORS:
        return [f"trainer.accelerator = {accelerator}: must be one of {', '.join(ACCELERATORS)}. Try auto."]
    has_cuda, has_mps = CUDAAccelerator.is_available(), MPSAccelerator.is_available()
    if not {"cuda": has_cuda, "mps": has_mps, "gpu": has_cuda or has_mps}.get(accelerator, True):
        return [
            f"trainer.accelerator = {accelerator}: torch finds no such device on this machine. Set "
            "--trainer.accelerator cpu, or auto."
        ]
    if devices == "auto":
        return []
    if has_cuda and accelerator in ("auto", "cuda", "gpu"):
        rule = f"auto, a number from 1 to {CUDAAccelerator.auto_device_count()}, or a list of GPU numbers"
        try:
            fine = bool(_parse_gpu_ids(devices, include_cuda=True))  # type: ignore[arg-type]  # any is asked
        except (MisconfigurationException, ValueError, TypeError):
            fine = False
    else:
        rule = "auto, or a number of processes from 1 on"
        fine = str(devices).isdecimal() and int(str(devices)) > 0
    return [] if fine else [f"trainer.devices = {devices}: must be {rule}. Try auto."]


def num_devices(*, accelerator: str, devices: object) -> int:
    """How many devices of this machine a Trainer with these settings takes."""
    uses_gpu = accelerator in ("cuda", "gpu") or (accelerator == "auto" and CUDAAccelerator.is_available())
    if devices in ("auto", -1, "-1"):
        return CUDAAccelerator.auto_device_count() if uses_gpu else 1
    if not uses_gpu:
        return int(devices) if isinstance(devices, int | str) else 1
    return len(_parse_gpu_ids(devices, include_cuda=True) or [])  # type: ignore[arg-type]  # checked by the parser


def port_problems(*, world_size: int, env: Mapping[str, str] = os.environ) -> list[str]:
    """The port where ranks meet, when it is fixed and something else listens there."""
    fixed = under_slurm(env) or "MASTER_PORT" in env
    if world_size < 2 or not fixed or not is_main_process(env) or "TORCHELASTIC_RUN_ID" in env:
        return []
    port = int(env.get("MASTER_PORT", 15000 + int(env.get("SLURM_JOB_ID", "0")[-4:])))  # as Lightning does
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return [
                f"port {port} of {socket.gethostname()}, where the ranks meet, is not free ({error}). "
                "Set the environment variable MASTER_PORT to another one, the same for all tasks."
            ]
    return []


def requeue(env: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Ask SLURM to run this job again. Whether it will, and a sentence about it.

    A job that a person cancelled gets SIGTERM too, when SLURM is already ending it: that one stays ended.
    """
    job = env["SLURM_JOB_ID"]
    shown = _scontrol("show", "job", "--oneliner", job)
    words = dict(word.partition("=")[::2] for word in shown.stdout.split())
    state, reason = words.get("JobState", ""), words.get("Reason", "")
    if state in ("PENDING", "REQUEUED"):
        return True, f"SLURM has requeued job {job}"
    if state in ("CANCELLED", "COMPLETING") and reason != "TimeLimit":
        return False, f"SLURM is ending job {job}, and was not asked to run it again."
    asked = _scontrol("requeue", job)
    if asked.returncode:
        return False, f"SLURM did not requeue job {job} ({(asked.stderr or asked.stdout).strip()})."
    return True, f"job {job} is requeued"


def _scontrol(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))

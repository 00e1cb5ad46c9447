"""Commands run side by side as one step, with a marker that says it is done; a failure shows its log."""

import json
import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from veca.utils.files import write_text_atomic


class Step(NamedTuple):
    """Commands that run side by side, each with its share of the cores."""

    name: str
    title: str
    commands: list[list[str]]


def run_step(step: Step, out: Path, *, place: str, started: float) -> list[float]:
    """Run the commands of a step side by side, unless they have been; the seconds each took."""
    marker = out / "steps" / f"{step.name}.json"
    if marker.exists():
        done: list[float] = json.loads(marker.read_text(encoding="utf-8"))["seconds"]
        print(f"[{place}] {step.title}: finished before, in {_clock(max(done))}", flush=True)
        return done
    logs = [out / "logs" / f"{step.name}-{number}.log" for number, _ in enumerate(step.commands)]
    print(f"[{place}] {step.title} (says more in {logs[0]})", flush=True)
    seconds = _run(step.commands, logs)
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(marker, json.dumps({"title": step.title, "seconds": seconds}) + "\n")
    total = time.monotonic() - started
    print(f"[{place}] done in {_clock(max(seconds))}, {_clock(total)} so far", flush=True)
    return seconds


def _run(commands: list[list[str]], logs: list[Path]) -> list[float]:
    cores = os.cpu_count() or 1
    threads = min(int(os.environ.get("OMP_NUM_THREADS") or cores), max(1, cores // len(commands)))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    children: list[subprocess.Popen[bytes]] = []
    seconds: dict[int, float] = {}
    started = time.monotonic()
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        for command, log in zip(commands, logs, strict=True):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as file:
                child = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            children.append(child)
        while len(seconds) < len(children):
            time.sleep(0.1)
            for number, child in enumerate(children):
                if number not in seconds and child.poll() is not None:
                    _check(child, commands[number], logs[number])
                    seconds[number] = time.monotonic() - started
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            child.wait()
        signal.signal(signal.SIGTERM, before)
    return [seconds[number] for number in range(len(commands))]


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that the commands are ended first."""
    raise SystemExit(128 + number)


def _check(child: "subprocess.Popen[bytes]", command: list[str], log: Path) -> None:
    if child.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        words = " ".join(command[2:])
        raise ValueError(
            f"a command ended with status {child.returncode}: {words}\n" + "\n".join(last) + f"\n"
            f"All of it is in {log}. The same `veca mini` continues with this step."
        )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))

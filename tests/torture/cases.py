"""The fault campaign: what a case is, how it is drawn, and what counts as failure. (Mirrors no package.)

**A case** is one short `veca fit` in real processes, forked from one that has imported torch and Lightning
already: 12 steps on two budgets, a save and a validation every 3, on 1 or 2 ranks with 0 to 2 loader workers
each. One fault befalls it at one moment. Then what was damaged is mended, the same command goes on with
`--ckpt_path last`, and its outcome is compared with that of a run that nothing happened to.

**The moment** is a hook of the training loop at or after a step. `trouble.py` sits in the run as a callback
and either does the harm itself, so that it happens between two known lines, or says that the moment has come,
and the harm is done from outside after up to 60 ms, wherever the run is then. A dead server has its moment at
a request instead.

**The faults**, with details (which rank, which signal, which bytes) that are drawn too:

    kill -9             a rank or a worker, once or again while the run resumes
    stop and continue   SIGSTOP for up to 2 s, as a debugger or a suspended job does
    signal storm        up to 40 of SIGTERM, SIGINT and SIGUSR1 to ranks and workers within 0.8 s
    full disk           the run's disk is filled to its last 0 to 200,000 bytes (a tmpfs: needs root)
    slow disk           every fsync takes up to a second
    clock jump          time.time() leaps by up to ten years, also back; half of the runs are killed after it,
                        and their files get shuffled times (a process cannot have a clock of its own)
    NaN in …            a loss, gradient, target or weight of one rank
    damaged …           a tar, the stored targets' tar, an index or a checkpoint: a flipped bit, a page of
                        zeros, cut off, or gone
    dead server         no answer, half an answer, 503 or another content, once or for ever

**Drawing.** A case is a function of (seed, number): `TORTURE_SEED` (0) and 0 to `TORTURE_CASES` - 1 (199).
The first cases meet each fault once: `make torture-short` runs those. Every case prints its line, and where
one fails the command that repeats it alone, as

    TORTURE_SEED=0 .venv/bin/python -m pytest -m torture "tests/torture/test_campaign.py::test_a_case[17]"

**It has failed** if
- a process of it outlives its deadline (3 minutes: 20 times what it takes, for machines that are busy);
- a checkpoint is lost: the newest whole one is older than the last that was due before the moment;
- one is poisoned: it reads, and holds a number that is not finite;
- a fault that must not end the run does end it, or one that a user can mend ends it with a traceback;
- the resumed run does not end well, or leaves temporary files;
- its weights or optimizer state differ in any bit. Where bytes of images or targets were replaced by others,
  they may: nothing hashes local shards while a run reads them.
"""

import os
import random
from typing import NamedTuple

STEPS = 12
SAVE_EVERY = 3
DEADLINE = 180.0  # seconds
FAULTS = (
    "kill -9",
    "stop and continue",
    "signal storm",
    "full disk",
    "slow disk",
    "clock jump",
    "NaN in a loss",
    "NaN in a gradient",
    "NaN in a target",
    "NaN in a weight",
    "damaged tar",
    "damaged cache",
    "damaged index",
    "damaged checkpoint",
    "dead server",
)
HOOKS = (
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_save_checkpoint",
    "on_validation_batch_start",
    "on_validation_end",
)
SEED = int(os.environ.get("TORTURE_SEED", "0"))
CASES = int(os.environ.get("TORTURE_CASES", "200"))


class Case(NamedTuple):
    """One case; whatever else it needs is drawn from `chance`."""

    seed: int
    number: int
    fault: str
    ranks: int
    workers: int
    hook: str
    step: int
    looks: int  # steps between two looks for numbers that are not finite

    def __str__(self) -> str:
        who = f"{self.fault}, ranks {self.ranks}, workers {self.workers}"
        return f"case {self.number} of seed {self.seed}: {who}, {self.hook} at step {self.step} or later"

    @property
    def command(self) -> str:
        test = f"tests/torture/test_campaign.py::test_a_case[{self.number}]"
        return f'TORTURE_SEED={self.seed} .venv/bin/python -m pytest -m torture "{test}"'

    @property
    def chance(self) -> random.Random:
        """The same draws every time it is asked."""
        return random.Random(f"{self.seed}, {self.number}, details")


def draw(seed: int, number: int) -> Case:
    chance = random.Random(f"{seed}, {number}")
    drawn = chance.choice(FAULTS)
    return Case(
        seed=seed,
        number=number,
        fault=FAULTS[number] if number < len(FAULTS) else drawn,
        ranks=chance.choice((1, 2)),
        workers=chance.choice((0, 1, 2)),
        hook=chance.choice(HOOKS),
        step=chance.randrange(STEPS - 2),
        looks=chance.choice((1, 50)),
    )

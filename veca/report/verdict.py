"""What a run comes to, in one sentence and one picture: the student beside the constant."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from veca.report.stage import Stage
from veca.utils.chart import Line, coloured, line_chart, number

BUDGET = "budget (active cores)"


class Verdict(NamedTuple):
    """What the report opens with."""

    sentence: str
    charts: Mapping[str, str]


class Case(NamedTuple):
    """The final validation at one resolution and budget."""

    resolution: int
    budget: int
    loss: float
    constant: float | None

    @property
    def margin(self) -> float:
        """How far the loss lies below the constant's, in percent of it."""
        assert self.constant is not None
        return 100 * (1 - self.loss / self.constant)


def judge(stages: list[Stage]) -> Verdict | None:
    """The verdict on the last stage that was validated."""
    for stage in reversed(stages):
        cases = final_cases(stage)
        if cases:
            caption = f"{stage.name}: final validation loss at every budget"
            return Verdict(_sentence(cases), {caption: _picture(cases)})
    return None


def final_cases(stage: Stage) -> list[Case]:
    cases = []
    for resolution, names in stage.grid("val").items():
        constant = stage.last(names[None]) if None in names else None
        for budget, name in names.items():
            loss = stage.last(name)
            if budget is not None and loss is not None:
                finite = loss if math.isfinite(loss) else math.inf
                cases.append(Case(resolution, budget, finite, constant))
    return cases


def _sentence(cases: list[Case]) -> str:
    compared = [case for case in cases if case.constant]
    order = _order(cases)
    if not compared:
        return f"There is no constant to compare the student with{order}."
    best, worst = (choose(compared, key=lambda case: case.margin) for choose in (max, min))
    won = sum(case.margin > 0 for case in compared)
    place = "at every resolution and budget"
    if won == len(compared):
        claim = f"The student beats the constant {place}"
    elif won:
        claim = f"The student beats the constant in {won} of {len(compared)} cases (resolution × budget)"
    else:
        claim = "The student beats the constant nowhere"
    ends = f"best {_margin(best)}" + (f", worst {_margin(worst)}" if worst != best else "")
    return f"{claim}: {ends}{order}."


def _margin(case: Case) -> str:
    margin = f"{abs(case.margin):.1f} % {'below' if case.margin > 0 else 'above'} it"
    place = f"({case.resolution} px, budget {case.budget})"
    return f"{margin if math.isfinite(case.margin) else 'not finite'} {place}"


def _order(cases: list[Case]) -> str:
    """Whether more cores are better, as they should be."""
    pairs = [(a, b) for a, b in pairwise(cases) if a.resolution == b.resolution]
    wrong = [(a, b) for a, b in pairs if not b.loss <= a.loss]
    if not pairs:
        return ""
    if not wrong:
        return "; a larger budget is nowhere worse"
    less, more = max(wrong, key=lambda pair: pair[1].loss - pair[0].loss)
    return (
        f"; in {len(wrong)} of {len(pairs)} steps a larger budget is worse, most at {less.resolution} px: "
        f"{number(more.loss)} with {more.budget} cores, {number(less.loss)} with {less.budget}"
    )


def _picture(cases: list[Case]) -> str:
    """Losses as shares of the constant's, so that one level stands for it at all resolutions."""
    compared = all(case.constant for case in cases)
    lines = []
    for resolution in dict.fromkeys(case.resolution for case in cases):
        found = [case for case in cases if case.resolution == resolution]
        points = [(float(case.budget), 100 - case.margin if compared else case.loss) for case in found]
        lines.append(Line(f"{resolution} px", points))
    budgets = sorted({float(case.budget) for case in cases})
    if compared:
        lines.append(Line("constant", [(budgets[0], 100.0), (budgets[-1], 100.0)], dashed=True))
    label = "val loss, % of the constant's" if compared else "val loss"
    return line_chart(coloured(lines), x_label=BUDGET, y_label=label, x_ticks=budgets)

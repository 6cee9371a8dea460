"""How numbers and foreign text are put into words, the same in every report."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import OWN_NAME, WorkerTrial
from ..records.diagnosis import SURE, Advice, Diagnosis, Severity, Verdict
from ..records.redaction import redact
from ..rules.evaluation import OUTSIDE
from ..rules.job.words import OTHERS, of_ranks
from ..rules.slow_function import SlowFunction
from ..rules.weight import HEALTHY
from ..workers import savings, with_threads

ABSENT = "-"
"""Shown where something was not measured."""

WORTH_PCT = 5.0
"""Predicted gain from which on what to do is said at the end of a run that lost no time; as in its rules."""

NAME_LIMIT = 60
"""Most characters of a user's name (a callback, a logger, an interface) that a report shows."""

TEXT_LIMIT = 400
"""Most characters of a sentence that a report shows."""

LONGEST_WORD = 24
"""Longer ones are cut where a text has to be."""

HEADLINE_LIMIT = 300
"""Most characters of the headline, which has to fit into a tracker's note and a console line."""

LABELS = {
    "start": "start, before step 1",
    "warmup": "warm-up, the first steps' excess",
    "worker_startup": "loader start-up",
    "data_wait": "data wait",
    "h2d": "batch transfer",
    "loop": "framework loop",
}
"""Words for the buckets whose name does not say it all."""

_TIMES = "\N{MULTIPLICATION SIGN}"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: object, limit: int = TEXT_LIMIT) -> str:
    """Make foreign text safe to show: one line, no control or direction characters, no passwords, cut between words.

    Args:
        text: What somebody else wrote.
        limit: Most characters to keep; fewer than one are one.
    """
    limit = max(1, limit)
    clean = redact(" ".join(_CONTROL.sub(" ", str(text)).split()))
    if len(clean) <= limit:
        return clean
    whole = clean[: limit - 1].rpartition(" ")[0] if clean[limit - 1] != " " else clean[: limit - 1]
    # A word that is longer than that is a path or a name, of which the beginning says more than nothing.
    return (whole if len(whole) > limit - 1 - LONGEST_WORD else clean[: limit - 1]).rstrip() + "…"


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent where it can be read without one."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(0, decimals)}f}" if decimals <= 9 else f"{value:.{digits}g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit; a share or a factor, whose unit is 1, has none to show."""
    text = significant(value)
    if text == "1" and unit.isalpha() and len(unit) > 2:  # one collective, and no symbol of a unit
        unit = unit.removesuffix("s")
    return text if unit in ("1", "") else f"{text} {unit}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit in which it is read best."""
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value)
    if size >= 3.6e9:
        return f"{value / 3600:.3g} h"
    if size >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours:,} h {minutes:02d} min"
    if size >= 120:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    for least, factor, unit in ((1, 1, "s"), (1e-3, 1e3, "ms"), (1e-7, 1e6, "µs")):
        if size >= least:
            return f"{significant(value * factor)} {unit}"
    return "0 s"


def percent(value: float | None) -> str:
    """Return a percentage; below 0.1 it says only that."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if 0 < value < 0.1:
        return "<0.1 %"
    if 0.05 <= abs(value) < 99.95:
        return f"{value:.1f} %"
    return f"{value:,.0f} %" if abs(value) < 1e9 else f"{value:.3g} %"


def size(value: float | None) -> str:
    """Return a number of bytes in decimal units."""
    if value is None or not math.isfinite(value):
        return ABSENT
    for least, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= least:
            return f"{significant(value / least)} {unit}"
    return f"{value:.0f} B"


def without_end(running: bool | None) -> str:
    """Return what is said of a recording that does not say how its run ended, without a full stop.

    Args:
        running: Whether its process still runs; None where that cannot be told.
    """
    if running is None:
        return "The recording has no end: the run goes on, or could not say how it ended"
    return "The run goes on" if running else "The run has ended and could not say how: its process is gone"


def label(bucket: str, parts: Sequence[str] = ()) -> str:
    """Return the words for a bucket of the ledger.

    Args:
        bucket: Its name.
        parts: Names of what is known inside it: a loop without callbacks has none but ours.
    """
    if bucket == "callbacks" and list(parts) == [OWN_NAME]:
        return part_label(OWN_NAME)
    return LABELS.get(bucket, one_line(bucket, NAME_LIMIT))


def part_label(name: str) -> str:
    """Return the words for a callback, a logger or another part of a bucket."""
    return "stallmeter itself" if name == OWN_NAME else one_line(name, NAME_LIMIT)


def predicted(gain_pct: float | None, interval_pct: tuple[float, float] | None = None) -> str | None:
    """Return a predicted rise of throughput in words; None when there is none.

    Args:
        gain_pct: The rise in percent.
        interval_pct: Least and most of it.
    """
    if gain_pct is None or not math.isfinite(gain_pct):
        return None
    said = f"predicted {f'{times(gain_pct)} faster' if gain_pct >= 0.5 else 'not faster'}"
    if interval_pct is None or not all(map(math.isfinite, interval_pct)):
        return said
    least, most = (times(end).rstrip(_TIMES) for end in interval_pct)
    return f"{said} ({least} to {most})"


def gain(diagnosis: Diagnosis) -> str | None:
    """Return what the first advice gains: as predicted, else at most what the lost time allows; None if neither."""
    said = _predicted(diagnosis.advice[0]) if diagnosis.advice else None
    if said is not None:
        return said
    lost = diagnosis.share_pct
    if math.isfinite(lost) and 0.5 <= lost <= 95:
        return f"at most {times(100 * lost / (100 - lost))} faster"
    return None


def _predicted(advice: Advice) -> str | None:
    return predicted(advice.predicted_gain_pct, advice.gain_interval_pct)


@dataclass(frozen=True, slots=True)
class FixLine:
    """One line of a piece of advice."""

    label: str
    """do, or, expect or limit."""
    text: str
    gain: str = ""
    """What the advice gains, on its line ``expect``."""
    predicted: bool = False
    """Whether the gain was predicted, and is not only the most that could be won."""

    def __str__(self) -> str:
        if not self.gain:
            return self.text
        return f"{self.text.rstrip('.')}: {self.gain}" if self.text else self.gain


def fix_lines(diagnosis: Diagnosis) -> list[FixLine]:
    """Return a diagnosis' advice as short lines, each piece beginning with ``do``, or ``or`` from the second on."""
    found = []
    for i, advice in enumerate(diagnosis.advice):
        fix, said = advice.fix, _predicted(advice)
        won = (gain(diagnosis) if i == 0 else said) or ""
        lines = (
            FixLine("or" if i else "do", one_line(fix.do)),
            FixLine("expect", one_line(fix.expect), won, said is not None),
            FixLine("limit", one_line(fix.limit)),
        )
        found += [line for line in lines if str(line)]
    return found


AROUND = "its imports and the page at the end"
"""What stallmeter costs once, which is not in the ledger: a second or two of a program, however long it runs."""


ADDED_S = 0.1
"""Seconds by which looks made batches take longer, from which on they are told; our choice."""


def cost(own_s: float, thread_cpu_s: float | None, steps: int, share_pct: float | None, added_s: float = 0.0) -> str:
    """Return what stallmeter itself cost.

    Args:
        own_s: Seconds of its hooks in the training thread; 0 where an adapter does not measure them.
        thread_cpu_s: CPU seconds of its own threads.
        steps: How many steps that was for.
        share_pct: Both together, of the wall time.
        added_s: Seconds by which batches that were looked into took longer, beside these.
    """
    hooks = f"{seconds(own_s / max(1, steps))} a step" if own_s else "not measured"
    # Most of what the threads do comes with the seconds, and some of it once: a step has nothing to do with it.
    beside = f"{seconds(thread_cpu_s)} CPU beside it in all"
    more = f", and {seconds(added_s)} by which batches took longer for a look into them" if added_s >= ADDED_S else ""
    return f"{hooks} in the training thread, {beside}; {percent(share_pct)} of the run, without {AROUND}{more}"


BEFORE_PCT = 5.0
"""Of the wall time, from which on what came before it is told; our choice."""


def before(before_s: float | None, wall_s: float | None) -> str:
    """Say how long the program had run before the recording, which no gain is of; empty where that is short."""
    if before_s is None or not wall_s or 100.0 * before_s < BEFORE_PCT * wall_s:
        return ""
    return f"{seconds(before_s)} of the program, imports for example: not recorded, and in no predicted gain"


def times(gain_pct: float) -> str:
    """Return a rise of throughput as a factor: 90 % more is 1.9 times as much."""
    factor = 1 + gain_pct / 100
    return f"{significant(factor, 3 if factor < 1.2 else 2)}{_TIMES}" if math.isfinite(gain_pct) else ABSENT


def promised(verdict: Verdict) -> str | None:
    """Return what the recommended number of workers is predicted to bring; None where nothing was predicted.

    An advice to set it says what the run gains by it, the number itself what its steps do: one of the two is told.
    """
    workers = verdict.num_workers
    if workers is None:
        return None
    setting = re.compile(rf"\bnum_workers={workers.recommended}\b")
    told = [one for found in verdict.diagnoses for one in found.advice if setting.search(one.fix.do)]
    of_run = next((said for one in told if (said := _predicted(one))), None)
    return savings(workers) or of_run or predicted(workers.predicted_gain_pct)


def worker_change(verdict: Verdict) -> str | None:
    """Return the recommended change in a few words; None where none is recommended."""
    advice = verdict.num_workers
    if advice is None or advice.recommended == advice.current:
        return None
    won = promised(verdict) if advice.predicted_gain_pct else None
    won = f"the same speed with {savings(advice)}" if advice.saves_processes else won
    change = f"{advice.current} → {advice.recommended}{with_threads(advice.torch_threads)}"
    return f"num_workers {change}{f': {won}' if won else ''}"


_OUTCOMES = {
    "measuring": "being measured",
    "kept": "kept",
    "reverted": "not better beyond the noise, taken back",
    "set": "set by on_num_workers",
    "abandoned": "taken back because a rank could not have it",
    "unsettled": "the run ended before it was decided",
}


def trial(tried: WorkerTrial) -> str:
    """Return how a change of a setting did against its prediction."""
    parts = []
    if tried.predicted_gain_pct is not None:
        parts.append(f"predicted {times(tried.predicted_gain_pct)}")
    if tried.achieved_gain_pct is not None:
        parts.append(f"achieved {times(tried.achieved_gain_pct)}")
    parts.append(_OUTCOMES.get(tried.outcome) or one_line(tried.outcome, NAME_LIMIT))
    setting, values = one_line(tried.setting, NAME_LIMIT), f"{tried.before} → {tried.workers}"
    return f"{setting} {one_line(values, NAME_LIMIT)}: {', '.join(parts)}"


def headline(verdict: Verdict | None, trials: Sequence[WorkerTrial] = ()) -> str:
    """Return verdict, fix and gain in one plain line of at most `HEADLINE_LIMIT` characters.

    Args:
        verdict: What the rules said; None when they were not asked.
        trials: Numbers of workers that were tried in the run; the last one is named.
    """
    tail = f" {one_line(trial(trials[-1]), HEADLINE_LIMIT // 2)}." if trials else ""
    other = alternative(verdict, 80)
    if other and len(tail) < HEADLINE_LIMIT // 3:
        tail = f" Else: {one_line(other, HEADLINE_LIMIT // 3)}.{tail}"
    line = one_line(_headline(verdict, HEADLINE_LIMIT - len(tail)), HEADLINE_LIMIT - len(tail))
    return line + tail if line.endswith((".", "…")) or not tail else f"{line}.{tail}"


def console_lines(verdict: Verdict | None, trials: Sequence[WorkerTrial] = ()) -> list[str]:
    """Return what a run prints at its end: the loss in one line, then what to do in up to three short ones.

    Of what only informs and costs no time nothing has to be done, unless something is known to win time all the same.
    """
    primary = None if verdict is None else verdict.primary
    if primary is None or not primary.advice or not (_costs(primary) or _wins(primary)):
        return [headline(verdict, trials)]
    other = alternative(verdict)
    return [
        _loss(primary) if primary.time_lost_s > 0 else headline(verdict),
        *([f"{'else':<6} {other}"] if other else []),
        *(f"{line.label:<6} {line}" for line in itertools.takewhile(_is_first, fix_lines(primary))),
        *(f"{trial(tried)}." for tried in trials[-1:]),
    ]


def _costs(primary: Diagnosis) -> bool:
    return primary.severity is not Severity.INFO or primary.time_lost_s > 0


def _wins(primary: Diagnosis) -> bool:
    """Whether the first advice is predicted to win something; no number is no prediction."""
    gain_pct = primary.advice[0].predicted_gain_pct
    return gain_pct is not None and gain_pct >= WORTH_PCT


def _is_first(line: FixLine) -> bool:
    return line.label != "or"


def title(primary: Diagnosis, limit: int = 160) -> str:
    """Return a primary cause's title; where it is not sure it begins with "Probably". Of none it says that first."""
    said = titled(primary, limit)
    if primary.rule == HEALTHY and not primary.time_lost_s > 0:
        said = f"No loss was found, and {said[:1].lower()}{said[1:]}"
    return said if primary.confidence >= SURE else f"Probably: {said}"


def placed(primary: Diagnosis) -> str:
    """Return a primary cause's title, and where in the code most of it is."""
    where = place(primary)
    return f"{title(primary)}: {where}" if where else title(primary)


NEARLY_ALL = 0.8
"""Part of a function's time from which on the line that takes most of it is named without a share of its own."""


def place(diagnosis: Diagnosis) -> str:
    """Return where in the code most of it is; empty where that is not known."""
    found = diagnosis.location
    if found is None:
        return ""
    function, file = one_line(found.function, NAME_LIMIT), one_line(found.file, NAME_LIMIT)
    call = f" ({one_line(found.call, NAME_LIMIT)})" if found.call else ""
    at = f"{file}:{found.line}{call}"
    if diagnosis.rule == SlowFunction.id:  # its seconds are that function's: the share is of more than "it"
        return at if diagnosis.title.startswith(found.function) else f"in {function}, {at}"
    line_pct = found.line_share_pct
    if line_pct is not None and line_pct < NEARLY_ALL * found.share_pct:  # other lines of the function take the rest
        at = f"{line_pct:.0f} % in its line {at}"
    return f"{found.share_pct:.0f} % of it in {function}, {at}"


def titled(diagnosis: Diagnosis, limit: int = 160) -> str:
    """Return a diagnosis' title without its full stop; where it holds for some ranks alone these come first."""
    said = one_line(diagnosis.title, limit).rstrip(".")
    who = of_ranks(diagnosis.ranks)
    return f"{who[:1].upper()}{who[1:]}: {said}" if who else said


def sure(diagnosis: Diagnosis) -> str:
    """Return how sure a diagnosis is."""
    return f"{100 * diagnosis.confidence:.0f} % sure"


def alternative(verdict: Verdict | None, limit: int = 160) -> str | None:
    """Return what it is if it is not the primary cause; None where that one is sure or nothing else is known.

    Args:
        verdict: What the rules said.
        limit: Most characters of the title.
    """
    other = verdict.runner_up if verdict is not None and verdict.is_probable else None
    return None if other is None else f"{titled(other, limit)} ({rule_name(other)}, {sure(other)})"


def rule_name(diagnosis: Diagnosis) -> str:
    """Return a rule's id so that it can be shown."""
    return one_line(diagnosis.rule, NAME_LIMIT)


def _loss(primary: Diagnosis) -> str:
    doubt = "" if primary.confidence >= SURE else f" ({sure(primary)})"
    lost = f"{seconds(primary.time_lost_s)} lost, {percent(primary.share_pct)} of the run"
    where = place(primary)
    return f"{title(primary, 120)}: {lost}{doubt}{f'; {where}' if where else ''}."


def _headline(verdict: Verdict | None, limit: int) -> str:
    if verdict is None:
        return "Not judged: too little was measured."
    primary = verdict.primary
    if primary is None:
        missing = (name for item in verdict.abstained for name in item.missing)
        unknown = next((name for name in missing if name.startswith((OTHERS, OUTSIDE))), "")
        return f"No loss was found in what was measured{f'; too little is known of {unknown}' if unknown else ''}."
    if not primary.time_lost_s > 0:
        where = place(primary)
        return f"{title(primary, 120)}{f': {where}' if where else ''}. {primary.summary}"
    what = _loss(primary)
    if not primary.advice:
        return what
    change, workers = worker_change(verdict), verdict.num_workers
    todo = primary.advice[0].fix.do
    if change and workers and f"num_workers={workers.recommended}" in todo:
        return f"{what} Fix: {change}"
    won = gain(primary)
    tail = f": {won}" if won else ""
    room = limit - len(what) - len(" Fix: ") - len(tail)
    return f"{what} Fix: {one_line(todo, room).rstrip('.')}{tail}"

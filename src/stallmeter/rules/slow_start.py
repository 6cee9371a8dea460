"""The run takes long to start.

**What it means.** Before the steps are steady come two things. Before the first step: set-up, data preparation, the
building or download of the model, a sanity check, the first start of the device. In a run of a single epoch the wait
for its first batch belongs to it: workers start, and their dataset reads what it needs. In the first steps:
compilation, autotuning, memory that is got for the first time, caches that fill. In a long run that hardly matters. In
a short one, or one that is repeated in a search, it is time in which little is learnt. A start of many minutes holds an
expensive machine for nothing.

**Evidence.** `ledger.start_s`: wall time from the moment stallmeter was attached to the first request for a batch, in
seconds; imports before that are not seen. `ledger.warmup_s`: seconds that the first steps took beyond steady ones in
their own work (`steps.warm_up`). Of a single epoch (`ledger.epochs`) also what its first wait takes beyond others, the
making of its iterator included, and beyond what any batch takes (`workers.service_s`); of several that is
`worker-startup`'s. All together as a share of the whole run in
percent. `code.first_batch`: what a worker's first batch was spent in. As lost counts only what
exceeds a usual start (`usual_s`). `device.compiler`: seconds that torch.compile took until the steps were steady.

**Advice.** It depends on the part that takes longer. Before the first step: save what is prepared anew in each run,
download data and weights once, skip the sanity check (`num_sanity_val_steps=0`) once the code works. In the first
steps: keep the compiler's cache between runs, compile less, autotune less. Where most of it is an import, do that
where it is used.

**When it is wrong.** A run that is only a trial, stopped after a few steps, consists of its start. Then this is
reported for information up to `warn_s`. First steps that are long for another reason, such as larger batches at the
beginning, look like warm-up.

**References.** SageMaker MaxInitializationTime: 20 minutes. Nielsen, "Response Times: The 3 Important Limits": after
10 seconds attention is lost. PyTorch, "Compile Time Caching in torch.compile".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_of_start
from .frameworks import LIGHTNING
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """Fires when the time until the steps are steady is a large share of the run, or very long."""

    id: ClassVar[str] = "slow-start"
    title: ClassVar[str] = "The run takes long to start"
    own_severity: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("ledger.start_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = (
        "facts.framework",
        "ledger.warmup_s",
        "ledger.epochs",
        "steps.warm_up",
        "code.first_batch",
        "workers.service_s",
    )

    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the run is over before it learns anything")
    usual_s: float = threshold(2.0, "s", "our choice: a start of this length is nobody's problem")
    warn_s: float = threshold(10.0, "s", "Nielsen: the limit of keeping a person's attention")
    always_s: float = threshold(1200.0, "s", "SageMaker MaxInitializationTime, 20 minutes")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare start and warm-up with the run and with the clock."""
        start_s, warmup_s, wall_s = window.ledger.start_s, window.ledger.warmup_s or 0.0, window.ledger.wall_s
        if start_s is None or not wall_s:
            return None
        first_s = first_batch_s(window)
        in_wait, start_s = first_s > start_s, start_s + first_s
        total_s = start_s + warmup_s
        if total_s < self.usual_s:
            return None
        # Some time before the first step is usual; what the first steps take beyond others is not.
        share, lost_s = 100.0 * total_s / wall_s, max(0.0, start_s - self.usual_s) + warmup_s
        if share < self.warn_pct and total_s < self.always_s:
            return None
        gain = gain_of_start(window, lost_s, least=0.5, most=total_s / (lost_s or total_s or 1.0))
        compiled_s = _compiled_s(window)
        in_steps = warmup_s > start_s
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if total_s >= self.warn_s else Severity.INFO,
            title=_title(in_steps=in_steps, in_wait=in_wait) or self.title,
            summary=self._summary(window, total_s, warmup_s, share, waits=first_s > 0),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence(
                    "time before steady steps, share of the run",
                    share,
                    "%",
                    self.warn_pct,
                    "our choice: a quarter of the run is over before it learns anything",
                ),
                Evidence("time before steady steps", total_s, "s", self.always_s, "SageMaker MaxInitializationTime"),
                Evidence("of it in the first steps", warmup_s, "s"),
                *((Evidence("of it waiting for the first batch", first_s, "s"),) if first_s else ()),
                *((Evidence("of it in torch.compile", compiled_s, "s"),) if compiled_s else ()),
            ),
            advice=_in_first_steps(gain, compiled=compiled_s >= 0.3 * warmup_s)
            if in_steps
            else _in_first_wait(window, gain)
            if in_wait
            else _before_the_first_step(window, gain, self.usual_s),
        )

    def _summary(self, window: Window, total_s: float, warmup_s: float, share: float, *, waits: bool) -> str:
        if warmup_s < 0.1 * total_s:
            begun = "What comes before the steps took" if waits else "The first step began after"
            return f"{begun} {total_s - warmup_s:.1f} s, {share:.0f} % of the run."
        found, compiled_s = window.steps.warm_up, _compiled_s(window)
        steps = 0 if found is None else found.steps
        where = f"{warmup_s:.1f} s of it in the first " + (f"{steps} steps" if steps > 1 else "step")
        by = f", in which torch.compile took {compiled_s:.1f} s" if compiled_s >= 0.3 * warmup_s else ""
        return f"The steps were steady after {total_s:.1f} s, {share:.0f} % of the run: {where}{by}."


def first_batch_s(window: Window) -> float:
    """Return the seconds that the first wait of the only epoch took beyond others; 0 in a run of several.

    A batch takes its time, the first one as well: what any takes is no start.
    """
    if (window.ledger.epochs or 0) > 1:
        return 0.0
    made = window.workers.service_s
    return max(0.0, (window.spent.bucket_s("worker_startup") or 0.0) - (0.0 if made is None else made.median))


def _title(*, in_steps: bool, in_wait: bool) -> str | None:
    if in_steps:
        return "The first steps take long"
    return "The first batch takes long to come" if in_wait else None


def _compiled_s(window: Window) -> float:
    """Seconds that torch.compile took until the steps were steady; 0 without any."""
    warm_up = window.steps.warm_up
    return (None if warm_up is None else window.device.compiler.until_s(warm_up.ended_s)) or 0.0


def _imported(window: Window) -> str | None:
    """Return the import that most of the start went into, and where it stands; None where it was something else."""
    look = window.code.at("startup", "start")
    spot = look.spots[0] if look is not None and look.spots else None
    call = spot.calls[0] if spot is not None and spot.calls else ""
    return f"{call} ({spot.file}:{spot.line})" if spot is not None and call.startswith("import ") else None


def _before_the_first_step(window: Window, gain: Gain, usual_s: float) -> tuple[Advice, ...]:
    imported = _imported(window)
    if imported is not None:
        return (
            Advice.of(
                f"Move {imported} to where it is used, or leave it out.",
                expect="An earlier first step.",
                limit="Not where each run needs it.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of("Run python -X importtime once: it lists what each import takes."),
        )
    return (
        Advice.of(
            "Save what is prepared anew in each run: file lists, indices, tokenised or resized data.",
            expect=f"A first step within {usual_s:.0f} s.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        *(
            (
                Advice.of(
                    "Skip Lightning's sanity check: Trainer(num_sanity_val_steps=0).",
                    expect="An earlier first step.",
                    limit="Only once the code works: the check finds mistakes in validation early.",
                ),
            )
            if window.facts.framework in LIGHTNING
            else ()
        ),
        Advice.of("Keep data, weights and compiler caches on a local disk that outlives the run."),
    )


def _in_first_wait(window: Window, gain: Gain) -> tuple[Advice, ...]:
    look = window.code.first_batch
    spot = look.spots[0] if look is not None and look.spots else None
    where = "" if spot is None or not spot.own else f": {spot.function} ({spot.file}:{spot.line})"
    return (
        Advice.of(
            f"Save what the dataset reads or builds before its first item{where}.",
            expect="An earlier first step.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        Advice.of("Slim down what workers import, and worker_init_fn.", limit="Each worker does it when it starts."),
    )


def _in_first_steps(gain: Gain, *, compiled: bool) -> tuple[Advice, ...]:
    if compiled:
        return (
            Advice.of(
                "Keep torch.compile's cache between runs: set TORCHINDUCTOR_CACHE_DIR to a lasting folder.",
                expect="From the second run on, first steps that read what was compiled before.",
                limit="Only for the same model, shapes and version of torch.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of(
                "Compile the repeated block instead of the whole model: block.compile().",
                expect="One compilation for all copies of the block.",
            ),
            Advice.of('Use a cheaper mode: leave out mode="max-autotune", or do not compile short runs.'),
        )
    return (
        Advice.of(
            "Keep what the first steps build on a lasting disk: compiled kernels, caches, indices.",
            expect="From the second run on, first steps that find it there.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        Advice.of(
            "Set torch.backends.cudnn.benchmark=False where it is on.",
            expect="First steps without a search for the fastest kernels.",
            limit="Steady steps may become slower; only for convolutions on a GPU.",
        ),
        Advice.of("Move lazy initialisation out of the steps, and share it between trials."),
    )

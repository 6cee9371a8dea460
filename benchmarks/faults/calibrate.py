"""Fits the weights of a confidence to the kept draws with odd seeds, and prints them for `rules/confidence.py`.

    python -m benchmarks.faults.calibrate --folder build/faults

Logistic regression with a prior: without draws that say otherwise a rule's own confidence stands (weight 1, the others
0). No weight may be negative: more of a good sign makes no verdict less sure. Draws that other processes disturbed,
and those whose truth is unclear, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from stallmeter.rules import evaluation
from stallmeter.rules.confidence import Signs

from .kept import load
from .ours import reevaluated

PRIOR = 1.0
"""Weight of the prior, in draws: weak beside a hundred of them."""


def collect(folder: Path, seeds: Sequence[int]) -> tuple[list[Signs], list[bool]]:
    """Ask today's rules about the kept recordings; return the signs of each verdict and whether it is right."""
    found: list[Signs] = []
    right: list[bool] = []
    seen: list[Signs] = []
    original = evaluation.calibrated

    def noted(signs: Signs) -> float:
        seen.append(signs)
        return original(signs)

    evaluation.calibrated = noted  # type: ignore[assignment]
    try:
        for kept in load(folder, seeds):
            if kept.failed or kept.disturbed:
                continue
            seen.clear()
            verdict = reevaluated(folder / kept.result["recording"])
            if seen:
                found.append(seen[-1])
                right.append(kept.saying(verdict).judgement.right)
    finally:
        evaluation.calibrated = original
    return found, right


def fit(found: Sequence[Signs], right: Sequence[bool]) -> tuple[Signs, float]:
    """Return weights and bias."""
    signs = np.array([astuple(one) for one in found])
    truth = np.array(right, dtype=float)
    prior = np.array([0.0, 1.0, *[0.0] * (signs.shape[1] - 1)])

    def loss(x: np.ndarray) -> float:
        odds = x[0] + signs @ x[1:]
        return float(np.sum(np.logaddexp(0.0, odds) - truth * odds) + PRIOR * np.sum((x - prior) ** 2))

    bounds = [(None, None), *[(0.0, None)] * signs.shape[1]]
    best = minimize(loss, prior, bounds=bounds, method="L-BFGS-B").x
    return Signs(*(round(float(w), 2) for w in best[1:])), round(float(best[0]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/faults"))
    parser.add_argument("--last", type=int, default=239)
    arguments = parser.parse_args()
    found, right = collect(arguments.folder, range(1, arguments.last + 1, 2))
    weights, bias = fit(found, right)
    print(f"{sum(right)} of {len(right)} right")
    print(f"WEIGHTS = Signs({', '.join(f'{f.name}={getattr(weights, f.name)}' for f in fields(weights))})")
    print(f"BIAS = {bias}")


if __name__ == "__main__":
    main()

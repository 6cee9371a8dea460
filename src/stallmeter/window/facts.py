"""What is known of a run from its start on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..machine.budget import Budget
from ..machine.thread_settings import ThreadSettings


class Facts(dict[str, Any]):
    """Static facts of the recording's header by name, and how to read those that signals are made of."""

    @property
    def budget(self) -> Budget | None:
        """What the job may use; None in recordings that do not say."""
        known = self.get("budget")
        return Budget(**known) if isinstance(known, dict) else None

    @property
    def threads(self) -> ThreadSettings | None:
        """What is known of the threads that compute, as the run began; None in recordings that do not say."""
        known = self.get("threads")
        return ThreadSettings(**known) if isinstance(known, dict) else None

    @property
    def cpus_at_start(self) -> int | None:
        """CPUs that the process might run on as its interpreter started; None where nobody kept that."""
        return None if self.threads is None else self.threads.cpus_at_start

    @property
    def framework(self) -> str | None:
        """Package that drives the loop, without its version; ``loop`` for one of the program's own."""
        named = self.get("framework")
        return named.partition(" ")[0] if isinstance(named, str) else None

    @property
    def computes_16_bits(self) -> Mapping[str, bool] | None:
        """Whether the CPU has instructions for ``bfloat16`` and ``float16``; None where neither is known."""
        known = self.get("computes_16_bits")
        return known if isinstance(known, dict) and known else None

    @property
    def wide_vectors(self) -> bool | None:
        """Whether the CPU, an x86, has vectors of 512 bits; None of others, and where that is not known."""
        known = self.get("wide_vectors")
        return known if isinstance(known, bool) else None

    @property
    def has_other_ranks(self) -> bool:
        """Whether the job has other ranks, here or on another host, that wait for this one."""
        ranks, budget = self.get("world_size"), self.budget
        if isinstance(ranks, int):
            return ranks > 1
        return budget is not None and budget.ranks_on_node > 1  # of versions that kept no more

    @property
    def accelerator(self) -> str | None:
        """Class of the accelerator that the framework chose."""
        name = self.get("accelerator")
        return name if isinstance(name, str) else None

    @property
    def full_precision(self) -> bool | None:
        """Whether the Trainer was told to compute in 32 bits or more."""
        precision = self.get("precision")
        return precision.startswith(("32", "64")) if isinstance(precision, str) else None

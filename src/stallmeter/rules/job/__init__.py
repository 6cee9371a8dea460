"""Rules over all ranks of a job. Each sees what the merge of the ranks has found, and the ranks themselves."""

from __future__ import annotations

from .communication_bound import CommunicationBound
from .rank_imbalance import RankImbalance
from .rule import JobRule
from .sent_buffers import SentBuffers
from .straggler import Straggler
from .unsharded_data import UnshardedData

JOB_RULES: tuple[JobRule, ...] = (Straggler(), RankImbalance(), CommunicationBound(), SentBuffers(), UnshardedData())
"""Every rule over ranks with its default thresholds."""

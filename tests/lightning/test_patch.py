"""What Lightning calls may be patched whatever it is."""

from __future__ import annotations

from unittest.mock import MagicMock

from .conftest import Bench, both_namespaces


@both_namespaces
def test_a_logger_that_makes_its_attributes_up(bench: Bench) -> None:
    """A mock whose attribute is deleted never has it again."""
    logger = MagicMock(spec=bench.pl.loggers.Logger, save_dir=None, log_dir=None)
    sm = bench.monitor(trackers=None)
    bench.trainer(sm, logger=logger, log_every_n_steps=1).fit(bench.model(), bench.loader())
    assert logger.log_metrics.call_count == 4
    logger.save()

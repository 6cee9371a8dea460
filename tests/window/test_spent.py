"""Seconds by bucket, with what device and GPU tell about them."""

from __future__ import annotations

import pytest

from stallmeter.records import EvaluationBatches
from stallmeter.window.device import DeviceSignals
from stallmeter.window.facts import Facts
from stallmeter.window.gpu import GpuSignals
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.spent import SpentSignals
from stallmeter.window.steps import StepSignals

from ..rules.windows import device_steps, gpus, ledger


class Parts:
    """What time is spent on, and the parts that tell."""

    def __init__(self) -> None:
        self.ledger, self.device = LedgerSignals(), DeviceSignals()
        steps = StepSignals(LoaderSignals(), self.ledger)
        self.gpu = GpuSignals(Facts(), steps)
        self.spent = SpentSignals(self.ledger, self.device, self.gpu)


def test_nothing_is_known():
    """Without a ledger nothing is guessed."""
    made = Parts().spent
    assert made.bucket_s("data_wait") is None
    assert (made.data_wait_share_pct, made.step_work_s, made.step_share_pct) == (None,) * 3
    assert (made.largest_loss_pct, made.idle_in_steps_s) == (None, None)


def test_what_was_evaluated():
    """Loaders of several sizes are summed up."""
    made = Parts().spent
    assert made.evaluated is None
    made.append(EvaluationBatches(time_s=0.0, batches=30, batch_size=1))
    made.append(EvaluationBatches(time_s=1.0, batches=10, batch_size=9, of_training=True))
    assert made.evaluated is not None
    assert made.evaluated.training_share == 0.75
    assert (made.evaluated.batches, made.evaluated.items, made.evaluated.batch_size) == (40, 120, 3.0)


def test_hidden_wait_is_compute():
    """As far as the device did not idle for it. What the device says later moves it again."""
    made = Parts()
    made.ledger.append(ledger(start=0.0, data_wait=40.0, compute=10.0))
    assert (made.spent.bucket_s("data_wait"), made.spent.bucket_s("compute")) == (40.0, 10.0)
    assert made.spent.largest_loss_pct == pytest.approx(40.0)
    for found in device_steps(50, exposed=0.25):
        made.device.append(found)
    assert made.spent.bucket_s("data_wait") == pytest.approx(10.0)
    assert made.spent.bucket_s("compute") == pytest.approx(40.0)
    assert made.spent.data_wait_share_pct == pytest.approx(10.0)
    assert made.ledger.host_wait_share_pct == pytest.approx(40.0)


def test_work_of_the_steps():
    """The optimizer's is theirs; the framework's counts in the share, which is of training without validation."""
    made = Parts()
    made.ledger.append(
        ledger(start=0.0, data_wait=0.0, forward=30.0, backward=10.0, optimizer=5.0, loop=5.0, validation=50.0)
    )
    assert made.spent.step_work_s == pytest.approx(45.0)
    assert made.spent.step_share_pct == pytest.approx(100.0)


def test_idle_in_steps():
    """What the GPU idled, without what other buckets and copies explain."""
    made = Parts()
    made.ledger.append(ledger(start=0.0, data_wait=10.0, callbacks={"A": 5.0}))
    assert made.spent.idle_in_steps_s is None
    for sample in gpus(10, lambda i: {"utilization_pct": 60.0}):
        made.gpu.append(sample)
    assert made.spent.idle_in_steps_s == pytest.approx(25.0)
    for found in device_steps(50, h2d_s=0.01):
        made.device.append(found)
    assert made.spent.idle_in_steps_s == pytest.approx(15.0)


class TestLostInSteps:
    """Seconds of the host's that cost anything, beside a device."""

    def made(self, utilization_pct: float) -> SpentSignals:
        made = Parts()
        made.ledger.append(ledger(start=0.0, data_wait=0.0, forward=60.0, backward=40.0, optimizer=0.0, loop=0.0))
        for sample in gpus(10, lambda i: {"utilization_pct": utilization_pct}):
            made.gpu.append(sample)
        for found in device_steps(50, h2d_s=0.0):
            made.device.append(found)
        return made.spent

    def test_without_a_device_all_of_them(self):
        """Whatever a GPU that nobody uses does."""
        assert Parts().spent.lost_in_steps_s(30.0) == 30.0

    def test_two_parts_of_one_time(self):
        """Of 100 s the host spends 90 there and the device idles for 80: 70 to 80 are both."""
        assert self.made(20.0).lost_in_steps_s(90.0) == pytest.approx(75.0)
        assert self.made(0.0).lost_in_steps_s(90.0) == pytest.approx(90.0)

    def test_bounds_that_are_far_apart_tell_nothing(self):
        """Half of the time there, and half of it idle: that may be all the same time, or none of it."""
        assert self.made(50.0).lost_in_steps_s(50.0) is None
        assert self.made(20.0).lost_in_steps_s(40.0) == pytest.approx(30.0)
        assert self.made(20.0).lost_in_steps_s(39.0) is None

    def test_a_busy_device_loses_nothing(self):
        """What the host does costs nothing then, as far as anything can be said."""
        assert self.made(100.0).lost_in_steps_s(90.0) is None

    def test_idle_time_that_is_not_known(self):
        """Without utilization."""
        made = Parts()
        made.ledger.append(ledger(start=0.0, data_wait=0.0, forward=60.0, backward=40.0, optimizer=0.0, loop=0.0))
        for found in device_steps(50):
            made.device.append(found)
        assert made.spent.lost_in_steps_s(90.0) is None

"""What samples of network interfaces say."""

from __future__ import annotations

from stallmeter.records import NetworkSample

from ..rules.windows import hosts, run, traffic


def test_a_link():
    """Load and thirds of the traffic, by interface."""
    made = run(*traffic([5e7] * 30, [1e6] * 10 + [2e6] * 10 + [3e6] * 10), *traffic([1.0], [1.0], name="eth1"))
    links = made.host.links
    assert links is not None
    assert links["eth0"].use_pct == 50.0
    assert links["eth0"].sent_bytes_per_s == (1e6, 2e6, 3e6)
    assert links["eth1"].use_pct is None
    assert links["eth1"].sent_bytes_per_s is None


def test_an_interface_without_speed():
    """A link whose speed the kernel does not tell has no load."""
    made = run(*hosts(9, lambda i: {"network": (NetworkSample(name="x", received_bytes_per_s=1, sent_bytes_per_s=1),)}))
    assert made.host.links is not None
    assert made.host.links["x"].use_pct is None

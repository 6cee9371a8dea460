"""What the report says of the device's timeline, of PyTorch's allocator, of waiting calls and of a profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..records import AllocatorSample, DeepProfile, SyncCalls
from ..window import Window, exposed_wait
from . import wording

SHOWN_OPERATORS = 5
SHOWN_PLACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """The steady steps on the device; times are means over the timed ones, None where nothing was timed."""

    timed_steps: int
    host_clock_steps: int
    """Steps whose events could not be had or read, for which the host's clock counts."""
    host_wait_s: float | None
    """Data wait of the timed steps by the host's clock."""
    exposed_wait_s: float | None
    """How much of it the device idled for."""
    exposed_share_pct: float | None
    """Exposed share of the wait, steps by the host's clock included."""
    h2d_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    compute_s: float | None
    idle_s: float | None
    caught_up_pct: float | None
    """Share of the time beside the steps' work in which the device had nothing left to do."""
    allocators: tuple[AllocatorSample, ...]
    syncs: SyncCalls | None
    profile: DeepProfile | None


def device_view(window: Window) -> DeviceView | None:
    """Return what is known of the device; None when nothing of it was measured."""
    steps = window.device.steps.items
    if not steps and not window.gpu.allocators and window.device.syncs is None and window.device.profile is None:
        return None
    timed = exposed_wait.timed(steps)
    share, caught_up = window.device.exposed_wait_share, window.device.caught_up_share
    return DeviceView(
        timed_steps=len(timed),
        host_clock_steps=len(steps) - len(timed),
        host_wait_s=exposed_wait.mean_s(steps, lambda s: s.host_wait_s),
        exposed_wait_s=exposed_wait.mean_s(steps, lambda s: s.exposed_wait_s),
        exposed_share_pct=None if share is None else 100.0 * share,
        h2d_s=exposed_wait.mean_s(steps, lambda s: s.h2d_s),
        forward_s=exposed_wait.mean_s(steps, lambda s: s.forward_s),
        backward_s=exposed_wait.mean_s(steps, lambda s: s.backward_s),
        optimizer_s=exposed_wait.mean_s(steps, lambda s: s.optimizer_s),
        compute_s=exposed_wait.mean_s(steps, lambda s: s.compute_s),
        idle_s=exposed_wait.mean_s(steps, lambda s: s.idle_s),
        caught_up_pct=None if caught_up is None else 100.0 * caught_up,
        allocators=tuple(sample for _, sample in sorted(window.gpu.allocators.items())),
        syncs=window.device.syncs,
        profile=window.device.profile,
    )


def device_lines(view: DeviceView | None) -> Iterator[tuple[str, str]]:
    """Return what is said of it, as pairs of a name and a sentence without its full stop."""
    if view is None:
        return
    if view.exposed_wait_s is not None and view.host_wait_s is not None:
        cost = "nothing" if view.exposed_wait_s < 1e-6 else wording.seconds(view.exposed_wait_s)
        waited = f"the host waited {wording.seconds(view.host_wait_s)} a step for data; it cost {cost}"
        yield "exposed wait", f"{waited}: the device idled for {wording.percent(view.exposed_share_pct)} of the wait"
    parts = (
        ("copy", view.h2d_s),
        ("forward", view.forward_s),
        ("backward", view.backward_s),
        ("optimizer", view.optimizer_s),
        ("body", view.compute_s),
        ("between steps", view.idle_s),
    )
    said = ", ".join(f"{name} {wording.seconds(value)}" for name, value in parts if value is not None)
    if said:
        total = view.timed_steps + view.host_clock_steps
        yield "device", f"{said}; {view.timed_steps:,} of {total:,} steps timed"
    for sample in view.allocators:
        yield f"allocator {sample.index}", _allocator(sample)
    if view.syncs is not None and view.syncs.calls:
        yield "waits for it", _syncs(view.syncs)
    if view.profile is not None:
        yield "profile", _profile(view.profile)


def _allocator(sample: AllocatorSample) -> str:
    peak, reserved = wording.size(sample.allocated_peak_bytes), wording.size(sample.reserved_peak_bytes)
    found = f"peak {peak} in tensors, {reserved} reserved"
    found += f", {sample.alloc_retries} retries" if sample.alloc_retries else ""
    return found + (f", {sample.ooms} out of memory" if sample.ooms else "")


def _syncs(found: SyncCalls) -> str:
    places = sorted(found.calls.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_PLACES]
    steps = "1 step" if found.steps == 1 else f"{found.steps} steps"
    return f"in {steps}: " + ", ".join(f"{count} at {place}" for place, count in places)


def _profile(profile: DeepProfile) -> str:
    on_device = any(o.device_s for o in profile.operators)
    spent = [(o.name, (o.device_s or 0.0) if on_device else o.host_s) for o in profile.operators[:SHOWN_OPERATORS]]
    most = ", ".join(f"{name} {wording.seconds(seconds)}" for name, seconds in spent)
    where = "on the device" if on_device else "on the host"
    kept = f"; {profile.trace}" if profile.trace else ""
    slowed = "" if profile.slowdown_s is None else f" and slowed these steps by {wording.seconds(profile.slowdown_s)}"
    steps = f"{profile.steps} step{'s' * (profile.steps != 1)}"
    return (
        f"{steps} because of {profile.cause}, most time {where}: {most}{kept}; it held the training for "
        f"{wording.seconds(profile.held_s)}{slowed}"
    )

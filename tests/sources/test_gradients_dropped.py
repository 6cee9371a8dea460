"""Gradients that one network's step computes for another, found in real training loops of several optimizers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from stallmeter.records import DroppedGradients
from stallmeter.sources.gradients import DroppedGradientSource, dropped
from stallmeter.sources.gradients.dropped import ENOUGH, FIRST_STEP, LISTENED, MOST_STEPS, UNHEARD, HearSteps
from stallmeter.sources.optimizers import hear_steps, is_compiling

from .boundaries import Boundaries

LOOKED = FIRST_STEP + UNHEARD + LISTENED + ENOUGH + 3
"""Steps until a loop whose optimizers step once in each has been looked at."""


class Bench(Boundaries):
    """A gradient takes a millisecond."""

    def __init__(self, hear: HearSteps = hear_steps) -> None:
        super().__init__(partial(next, count(step=1_000_000)))
        self.source = DroppedGradientSource(self.register, hear, is_compiling)

    def told(self) -> DroppedGradients | None:
        found = self.source.sample(0.0)
        assert len(found) < 2
        return found[0] if found else None


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    made.source.close()


def net(*sizes: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=1e-3)


def gan(
    bench: Bench,
    *,
    detached: bool = False,
    frozen: bool = False,
    critics: int = 1,
    steps: int = LOOKED,
    cleared: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
) -> None:
    """Train a generator of two layers and a critic of three."""
    generator, critic = net(4, 6, 6), net(6, 6, 6, 1)
    by_generator, by_critic = sgd(generator), sgd(critic)
    for _ in range(steps):
        for _ in range(critics):
            fake = generator(torch.randn(8, 4))
            cleared(by_critic)
            loss = softplus(critic(fake.detach() if detached else fake)) + softplus(-critic(torch.randn(8, 6)))
            loss.mean().backward()
            by_critic.step()
        cleared(by_generator)
        critic.requires_grad_(not frozen)
        softplus(-critic(generator(torch.randn(8, 4)))).mean().backward()
        by_generator.step()
        critic.requires_grad_(True)
        bench.boundary()


def found_in(bench: Bench) -> DroppedGradients:
    found = bench.told()
    assert found is not None
    assert bench.is_done
    return found


def test_samples_that_are_not_detached(bench: Bench) -> None:
    gan(bench)
    found = found_in(bench)
    assert (found.beneath, found.beneath_during) == ("generator", "critic")
    assert (found.above, found.above_during) == ("critic", "generator")
    # Four gradients of the generator, half of what the layer above took besides; six of the critic, and the first of a
    # pass has nothing before it.
    assert found.beneath_s == pytest.approx(4.5e-3)
    assert found.above_s == pytest.approx(5e-3)
    assert found.backward_s == pytest.approx(18e-3)
    assert found.tensors == 10
    assert found.steps == ENOUGH - 1


def test_samples_that_are_detached(bench: Bench) -> None:
    gan(bench, detached=True)
    found = found_in(bench)
    assert (found.beneath, found.beneath_s) == ("", 0.0)
    assert (found.above, found.above_during) == ("critic", "generator")


def test_nothing_is_dropped(bench: Bench) -> None:
    gan(bench, detached=True, frozen=True)
    found = found_in(bench)
    assert (found.tensors, found.beneath_s, found.above_s) == (0, 0.0, 0.0)
    assert found.backward_s > 0.0


def test_a_critic_that_makes_more_steps(bench: Bench) -> None:
    gan(bench, critics=3)
    found = found_in(bench)
    assert found.beneath_s == pytest.approx(3 * 4.5e-3)
    assert found.above_s == pytest.approx(5e-3)


def test_an_advantage_that_is_not_detached(bench: Bench) -> None:
    def train() -> None:
        actor, critic = net(4, 6, 1), net(4, 6, 1)
        by_actor, by_critic = sgd(actor), sgd(critic)
        for _ in range(LOOKED):
            x = torch.randn(8, 4)
            value = critic(x)
            by_actor.zero_grad()
            (actor(x) * (1.0 - value)).mean().backward()
            by_actor.step()
            by_critic.zero_grad()
            (critic(x) - 1.0).square().mean().backward()
            by_critic.step()
            bench.boundary()

    train()
    found = found_in(bench)
    assert (found.beneath, found.beneath_during) == ("critic", "actor")


def shared_loss(
    bench: Bench,
    steps: int = LOOKED,
    *,
    body: nn.Module | None = None,
    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda head, made: head(made),
    create_graph: bool = False,
    then: Callable[[nn.Module], None] = lambda _: None,
    every: int = 1,
) -> None:
    """Train a body and a head by one loss, each with an optimizer of its own.

    Args:
        bench: Is told of each step.
        steps: So many.
        body: Of six outputs.
        forward: Computes the loss' items.
        create_graph: For gradients of gradients.
        then: What is done with the body when there are gradients.
        every: The head's optimizer makes a step in so many.
    """
    body, head = body or net(4, 6), net(6, 6, 1)
    both = sgd(body), sgd(head)
    for index in range(steps):
        for one in both:
            one.zero_grad()
        forward(head, body(torch.randn(8, 4))).square().mean().backward(create_graph=create_graph)
        then(body)
        for one in both if index % every == 0 else both[:1]:
            one.step()
        bench.boundary()


def test_two_optimizers_of_one_loss(bench: Bench) -> None:
    shared_loss(bench)
    assert found_in(bench).tensors == 0


def test_two_optimizers_that_accumulate(bench: Bench) -> None:
    """One makes its step in each batch, the other in each fourth, with the gradients of all four."""

    def train() -> None:
        body, head = net(4, 6), net(6, 1)
        both = sgd(body), sgd(head)
        for index in range(LOOKED + 4 * ENOUGH):
            both[1].zero_grad()
            if index % 4 == 0:
                both[0].zero_grad()
            head(body(torch.randn(8, 4))).mean().backward()
            both[1].step()
            if index % 4 == 3:
                both[0].step()
            bench.boundary()

    train()
    assert found_in(bench).tensors == 0


def test_one_optimizer_has_no_other(bench: Bench) -> None:
    """Steps whose first gradients are cleared by the program, as in sharpness-aware minimisation."""
    model = net(4, 6, 1)
    by = sgd(model)
    for _ in range(LOOKED):
        for _ in range(2):
            by.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
        by.step()
        bench.boundary()
    found = found_in(bench)
    assert (found.tensors, found.steps) == (0, 0)


def test_gradients_that_two_steps_of_one_loop_clear_at_their_ends(bench: Bench) -> None:
    """Each network's gradients are cleared right after its own step: those of the other's step are added, and used."""

    def train() -> None:
        generator, critic = net(4, 6), net(6, 1)
        both = sgd(critic), sgd(generator)
        for _ in range(LOOKED):
            for by in both:
                critic(generator(torch.randn(8, 4))).mean().backward()
                by.step()
                by.zero_grad()
            bench.boundary()

    train()
    # By the time that torch tells of a step its gradients are there; those left by the other one's are part of them.
    assert found_in(bench).tensors == 0


def distil(
    bench: Bench,
    *,
    follow: Callable[[nn.Module, nn.Module], None] | None,
    watched: bool = True,
    cleared: bool = False,
    late: bool = False,
) -> None:
    """Train a student beside a teacher that no optimizer has."""
    student, teacher = net(4, 6, 2), net(4, 6, 2)
    by = sgd(student)
    for _ in range(LOOKED):
        x = torch.randn(8, 4)
        made = student(x) if late else None
        with torch.set_grad_enabled(watched):
            wanted = teacher(x)
        by.zero_grad()
        ((student(x) if made is None else made) - wanted).square().mean().backward()
        by.step()
        if follow is not None:
            follow(teacher, student)
        if cleared:
            teacher.zero_grad()
        bench.boundary()


def in_place(teacher: nn.Module, student: nn.Module) -> None:
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)


def by_data(teacher: nn.Module, student: nn.Module) -> None:
    """Past the counter of what is written."""
    for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


@pytest.mark.parametrize("follow", [in_place, by_data])
def test_a_teacher_that_follows_the_student(follow: Callable[[nn.Module, nn.Module], None], bench: Bench) -> None:
    """It is in no optimizer, and its gradients are added up for ever."""
    distil(bench, follow=follow)
    found = found_in(bench)
    assert (found.beneath, found.beneath_during) == ("teacher", "student")
    assert found.tensors == 4
    assert found.beneath_s > 0.0


def test_a_teacher_whose_gradients_come_first(bench: Bench) -> None:
    """It is asked after the student, and so lies before it in the backward pass: as a part above would."""
    distil(bench, follow=in_place, late=True)
    found = found_in(bench)
    assert (found.above, found.above_during, found.above_trained) == ("teacher", "student", False)
    assert found.beneath_s == 0.0


@pytest.mark.parametrize(
    "more", [{"watched": False}, {"follow": None}, {"cleared": True}], ids=["no gradients", "as it is", "cleared"]
)
def test_a_teacher_of_whose_gradients_nothing_is_said(more: Any, bench: Bench) -> None:
    """There are none, it never changes, which `UnusedGradients` tells, or somebody clears them, and may use them."""
    distil(bench, **{"follow": in_place, **more})
    assert found_in(bench).tensors == 0


def zeroed(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


def test_gradients_that_are_zeroed_in_place_are_not_seen(bench: Bench) -> None:
    gan(bench, cleared=zeroed)
    assert found_in(bench).tensors == 0


def replaced(body: nn.Module) -> None:
    for p in body.parameters():
        assert p.grad is not None
        p.grad = p.grad.clone()


def again(head: nn.Module, made: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = checkpoint(head, made, use_reentrant=True)
    return found


@pytest.mark.parametrize(
    "more",
    [{"then": replaced}, {"create_graph": True}, {"forward": again}, {"every": 25, "steps": LOOKED + MOST_STEPS}],
    ids=["others replace", "gradients of gradients", "a pass within a pass", "a step now and then"],
)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_of_which_nothing_is_known(more: Any, bench: Bench) -> None:
    """Buckets of DDP take their place; what is added to them is another tensor; checkpoints that compute a part anew
    have a backward pass of their own for it; the look ends before an optimizer has made three steps.
    """
    shared_loss(bench, **more)
    assert bench.told() is None
    assert bench.is_done


def test_an_optimizer_that_comes_later(bench: Bench) -> None:
    def train() -> None:
        body, head, late = net(4, 6), net(6, 1), net(6, 1)
        both = [sgd(body), sgd(head)]
        for index in range(LOOKED):
            if index == FIRST_STEP + UNHEARD + LISTENED + 2:
                both.append(sgd(late))
            for one in both:
                one.zero_grad()
            (head(body(torch.randn(8, 4))) + late(torch.randn(8, 6))).mean().backward()
            for one in both:
                one.step()
            bench.boundary()

    train()
    assert bench.told() is None
    assert bench.is_done


def test_somebody_hears_of_all_steps(bench: Bench) -> None:
    """A step of the loop ends among torch's hooks of an optimizer's step, where none may be added or removed."""
    before = hooks()
    generator, critic = net(4, 6), net(6, 1)
    both = sgd(generator), sgd(critic)
    added = 0

    def heard(optimizer: Any, *_: Any) -> None:
        nonlocal added
        if bench.clock.on_update is not None:
            bench.clock.on_update(optimizer)
        if optimizer is both[1]:
            bench.boundary()
            added = max(added, hooks() - before)

    handles = [one.register_step_post_hook(heard) for one in both]

    def train() -> None:
        for _ in range(LOOKED):
            for by in both:
                by.zero_grad()
                critic(generator(torch.randn(8, 4))).mean().backward()
                by.step()

    train()
    for handle in handles:
        handle.remove()
    found = found_in(bench)
    assert (found.beneath, found.beneath_during) == ("generator", "critic")
    assert added == 0
    assert bench.clock.on_update is None


def test_a_loop_that_ends_its_steps_among_hooks_of_which_nobody_tells(bench: Bench) -> None:
    """Torch is not asked then: adding a hook while it goes through them is an error in the program's own step."""
    before = hooks()
    model = net(4, 6, 1)
    by = sgd(model)
    handle = register_optimizer_step_post_hook(lambda *_: bench.boundary())
    for _ in range(LOOKED):
        by.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        by.step()
    assert hooks() == before + 1
    handle.remove()
    assert bench.told() is None


def hooks() -> int:
    from torch.optim import optimizer

    return len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks)


def test_all_hooks_are_taken_back(bench: Bench) -> None:
    before = hooks()
    generator, critic = net(4, 6), net(6, 1)
    both = sgd(generator), sgd(critic)
    ever = False
    for _ in range(LOOKED):
        for by in both:
            by.zero_grad()
            critic(generator(torch.randn(8, 4))).mean().backward()
            by.step()
        bench.boundary()
        ever = ever or any(p._post_accumulate_grad_hooks for p in critic.parameters())
    assert ever
    assert bench.is_done
    assert hooks() == before
    assert not any(p._post_accumulate_grad_hooks for p in (*critic.parameters(), *generator.parameters()))


@pytest.mark.parametrize("steps", [FIRST_STEP + UNHEARD + 3, FIRST_STEP + UNHEARD + LISTENED + 3])
def test_a_run_that_ends_meanwhile(steps: int, bench: Bench) -> None:
    before = hooks()
    gan(bench, steps=steps)
    assert hooks() > before
    bench.source.close()
    assert hooks() == before


def test_no_tensor_is_kept_alive(bench: Bench) -> None:
    body = net(4, 6)
    kept = weakref.ref(next(body.parameters()))
    shared_loss(bench, FIRST_STEP + UNHEARD + LISTENED + 3, body=body)
    assert kept()._post_accumulate_grad_hooks  # type: ignore[union-attr]
    del body
    gc.collect()
    assert kept() is None


def weights(bench: Bench | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    generator, critic = net(4, 6, 6), net(6, 6, 1)
    both = sgd(critic), sgd(generator)
    for _ in range(LOOKED):
        for by in both:
            by.zero_grad()
            softplus(critic(generator(torch.randn(8, 4)))).mean().backward()
            by.step()
        if bench is not None:
            bench.boundary()
    return [p.detach().clone() for net_ in (generator, critic) for p in net_.parameters()]


def test_weights_are_the_same(bench: Bench) -> None:
    for one, other in zip(weights(None), weights(bench), strict=True):
        assert torch.equal(one, other)


def test_models_of_many_tensors_are_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped, "MOST_TENSORS", 9)
    gan(bench)
    assert bench.told() is None
    assert bench.is_done


def test_without_optimizers_it_gives_up() -> None:
    bench = Bench(lambda *_: [])
    for _ in range(FIRST_STEP + LISTENED * (dropped.TRIES + 1)):
        bench.boundary()
    assert bench.is_done

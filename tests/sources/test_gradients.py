"""Parameters that get gradients and never change, found between the steps of real training loops."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from stallmeter.records import DenseEmbeddings, SubnormalTensors, UnusedGradients
from stallmeter.sources.gradients import (
    BETWEEN,
    BETWEEN_LONG,
    FIRST_STEP,
    LAST,
    TABLE_LOOKS,
    TRIES,
    GradientSource,
    models_of,
)

from ..conftest import FakeTime
from .boundaries import Boundaries

T = TypeVar("T")

ENOUGH = FIRST_STEP + 2 * BETWEEN + 2


class Net(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.backbone(x))
        return out


class Bench(Boundaries):
    """Keeps what the source says until it is asked for."""

    def __init__(self, modules: Any = None, number_looks: tuple[int, ...] = (), step_s: float = 0.01) -> None:
        self.time = FakeTime()
        super().__init__(self.time)
        self.step_s = step_s
        self.kept: list[Any] = []
        self.source = GradientSource(self.register, modules, number_looks)

    def boundary(self, index: int | None = None) -> None:
        self.time.sleep(self.step_s)
        super().boundary(index)

    def said(self) -> UnusedGradients | None:
        """What was said since the last time, if that is of any gradients."""
        found = self.told()
        return found if found is not None and found.tensors else None

    def told(self) -> UnusedGradients | None:
        return self._one(UnusedGradients)

    def dense(self) -> DenseEmbeddings | None:
        """What was said of embedding tables since the last time."""
        return self._one(DenseEmbeddings)

    def subnormal(self) -> SubnormalTensors | None:
        """What was said of numbers next to zero since the last time."""
        return self._one(SubnormalTensors)

    def _one(self, kind: type[T]) -> T | None:
        self.kept += self.source.sample(0.0)
        found = [record for record in self.kept if isinstance(record, kind)]
        self.kept = [record for record in self.kept if not isinstance(record, kind)]
        assert len(found) < 2
        return found[0] if found else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def sgd(*modules: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=lr)


def train(bench: Bench, model: nn.Module, optimizer: Any, steps: int = ENOUGH, **more: Any) -> None:
    """Train in a function that asserts nothing: pytest has those ask for their variables."""
    for _ in range(steps):
        step(model, optimizer, **more)
        bench.boundary()


def step(model: nn.Module, optimizer: Any, *, after: Callable[[], None] | None = None) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    if after is not None:
        after()


def test_a_backbone_that_its_optimizer_alone_leaves_out(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer)
    found = bench.said()
    assert found is not None
    assert (found.part, found.kind, found.tensors, found.also) == ("model.backbone", "Sequential", 4, ())
    assert (found.numbers, found.updated_numbers) == (numbers(model.backbone), numbers(model.head))
    assert found.share == pytest.approx(numbers(model.backbone) / numbers(model))


@pytest.mark.parametrize(("step_s", "is_told"), [(0.5, True), (0.05, False)])
def test_long_steps_are_looked_at_sooner(step_s: float, is_told: bool) -> None:
    """A run of some seconds has hardly more of them."""
    bench, model = Bench(step_s=step_s), Net()
    train(bench, model, sgd(model.head), FIRST_STEP + 2 * BETWEEN_LONG + 1)
    assert (bench.said() is not None) == is_told


def test_several_parts_that_stand_beside_trained_ones(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.backbone[0])
    train(bench, model, optimizer)
    found = bench.said()
    assert found is not None
    assert (found.part, found.also) == ("model.backbone[2]", ("model.head",))


def test_a_model_beside_the_trained_one(bench: Bench) -> None:
    student, teacher = Net(), Net()
    optimizer = sgd(student)

    def distil() -> None:
        for _ in range(ENOUGH):
            optimizer.zero_grad()
            x = torch.randn(4, 6)
            nn.functional.mse_loss(student(x), teacher(x)).backward()
            optimizer.step()
            bench.boundary()

    distil()
    found = bench.said()
    assert found is not None
    assert (found.part, found.numbers, found.share) == ("teacher", numbers(teacher), 0.5)


@pytest.mark.skipif(not hasattr(torch, "_fused_sgd_"), reason="fused optimizers on a CPU came with torch 2.4")
@pytest.mark.parametrize("named", [True, False])
def test_fused_optimizers_whose_writes_torch_does_not_count(bench: Bench, named: bool) -> None:
    model = Net()
    head = list(model.head.parameters())
    optimizer = torch.optim.AdamW(head, lr=0.1, fused=True)
    before = head[0]._version

    def stepped() -> None:
        for _ in range(ENOUGH):
            model.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            (optimizer if named else hidden[0][0]).step()
            bench.boundary()

    hidden = [[optimizer]]  # where nobody looks
    if not named:
        del optimizer
    stepped()
    assert head[0]._version == before
    found = bench.said()
    assert found is not None
    assert (found.part, found.numbers) == ("model.backbone", numbers(model.backbone))
    assert found.updated_numbers == numbers(model.head)


def test_a_function_that_calls_a_method_named_as_what_asks_for_names(bench: Bench) -> None:
    """As nearly every loop does: ``model.eval()`` asks nobody for the variables."""
    student, teacher = Net(), Net()
    optimizer = sgd(student)

    def distil() -> None:
        teacher.eval()
        for _ in range(ENOUGH):
            optimizer.zero_grad()
            x = torch.randn(4, 6)
            nn.functional.mse_loss(student(x), teacher(x)).backward()
            optimizer.step()
            bench.boundary()

    distil()
    found = bench.said()
    assert found is not None
    assert found.part == "teacher"


def test_all_gradients_are_cleared_where_a_look_is_due(bench: Bench) -> None:
    """As Lightning does before a validation."""
    model = Net()
    optimizer = sgd(model.head)
    for index in range(ENOUGH + 2):
        step(model, optimizer)
        if index + 1 in (FIRST_STEP + BETWEEN, FIRST_STEP + 2 * BETWEEN + 1):
            model.zero_grad()
        bench.boundary()
    found = bench.said()
    assert found is not None
    assert found.part == "model.backbone"


def test_weights_cleared_of_gradients_at_the_end_of_a_step(bench: Bench) -> None:
    """The optimizer's own are gone by then; the others are still there, and grow."""
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer, after=optimizer.zero_grad)
    found = bench.said()
    assert found is not None
    assert found.part == "model.backbone"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
@pytest.mark.parametrize("foreach", [True, False])
def test_nothing_is_said_of_a_model_that_is_trained(kind: Any, foreach: bool, bench: Bench) -> None:
    model = Net()
    optimizer = kind(model.parameters(), lr=0.01, foreach=foreach)
    train(bench, model, optimizer)
    found = bench.told()
    assert found is not None
    assert (found.tensors, found.numbers, found.updated_numbers) == (0, 0, numbers(model))
    assert bench.is_done


def freeze(model: Net) -> None:
    model.backbone.requires_grad_(False)


def run_without_gradients(model: Net) -> None:
    whole = model.backbone.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return whole(x)

    model.backbone.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("prepare", [freeze, run_without_gradients])
def test_a_part_that_is_frozen_in_truth(prepare: Callable[[Net], None], bench: Bench) -> None:
    model = Net()
    prepare(model)
    optimizer = sgd(model.head)
    train(bench, model, optimizer)
    assert bench.said() is None
    assert bench.is_done


def test_gradients_of_long_ago(bench: Bench) -> None:
    """Another model was trained before, and nobody has called it since."""
    before, model = Net(), Net()
    step(before, sgd(before))
    optimizer = sgd(model)
    train(bench, model, optimizer)
    assert bench.said() is None


@pytest.mark.parametrize("in_place", ["data", "no_grad"])
def test_weights_that_the_program_updates_itself(in_place: str, bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)

    def by_hand() -> None:
        for p in model.backbone.parameters():
            gradient: Any = p.grad
            if in_place == "data":  # past torch's counter
                p.data -= 0.1 * gradient
            else:
                with torch.no_grad():
                    p -= 0.1 * gradient

    train(bench, model, optimizer, after=by_hand)
    assert bench.said() is None
    assert bench.is_done


def test_two_models_that_are_trained_in_turn(bench: Bench) -> None:
    """As a generator, whose gradients come with the discriminator's steps and are used in its own."""
    maker, judge = nn.Linear(6, 6), Net()
    optimizers = [sgd(maker, lr=0.01), sgd(judge, lr=0.01)]

    def in_turn() -> None:
        for index in range(ENOUGH):
            judge(maker(torch.randn(4, 6))).square().mean().backward()
            optimizers[index % 5 == 0].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            bench.boundary()

    in_turn()
    assert bench.said() is None


def test_what_is_updated_later_is_taken_back(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer)
    assert bench.said() is not None
    train(bench, model, sgd(model), LAST)
    found = bench.told()
    assert found is not None
    assert (found.part, found.tensors, found.numbers) == ("", 0, 0)
    assert bench.is_done


def test_what_lasts_is_told_once(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer, ENOUGH + LAST)
    assert bench.said() is not None
    assert bench.said() is None
    assert bench.is_done


def test_gradients_that_are_accumulated_for_long(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)

    def accumulate() -> None:
        for index in range(200):
            model(torch.randn(4, 6)).square().mean().backward()
            if index % 100 == 99:
                optimizer.step()
                optimizer.zero_grad()
            bench.boundary()

    accumulate()
    found = bench.said()
    assert found is not None
    assert found.part == "model.backbone"


def test_nothing_is_ever_updated(bench: Bench) -> None:
    model = Net()

    def add_up() -> None:
        for _ in range(FIRST_STEP + (TRIES + 1) * BETWEEN):
            model(torch.randn(4, 6)).square().mean().backward()
            bench.boundary()

    add_up()
    assert bench.told() is None
    assert bench.is_done


def test_no_tensor_is_kept_alive(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer, FIRST_STEP + BETWEEN + 3)
    gone = [weakref.ref(p) for p in model.parameters()] + [weakref.ref(p.grad) for p in model.parameters()]
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)


def test_variables_are_not_kept_alive(bench: Bench) -> None:
    """Up to Python 3.12 a frame keeps the copy of its variables that somebody asked for."""
    model = Net()
    optimizer = sgd(model.head)
    gone: list[Any] = []

    def begin() -> Generator[None, None, None]:
        for _ in range(FIRST_STEP + 1):
            step(model, optimizer)
            batch = torch.randn(4, 6)
            gone.append(weakref.ref(batch))
            bench.boundary()
        del batch
        yield  # the frame lives on

    going_on = begin()
    next(going_on)
    assert gone[-1]() is None
    going_on.close()


def test_a_program_that_asks_for_its_variables_keeps_them(bench: Bench) -> None:
    model = Net()
    optimizer = sgd(model.head)
    kept: list[dict[str, Any]] = []

    def settings(model: nn.Module, rate: float) -> None:
        kept.append(locals())
        for _ in range(ENOUGH):
            step(model, optimizer)
            later = rate
            bench.boundary()
        del later

    settings(model, 0.5)
    assert kept[0]["rate"] == 0.5
    assert "later" not in kept[0]


def test_variables_that_somebody_else_has_asked_for_stay(bench: Bench) -> None:
    """A program may keep what a frame gave it: up to Python 3.12 it is the same dict each time."""
    model = Net()
    optimizer = sgd(model.head)
    kept: list[Any] = []

    def note() -> None:
        kept.append(sys._getframe(1).f_locals)

    def run(model: nn.Module, rate: float) -> None:
        note()
        for _ in range(ENOUGH):
            step(model, optimizer)
            bench.boundary()

    run(model, 0.5)
    assert kept[0]["rate"] == 0.5
    assert bench.said() is not None


class Odd(Net):
    """Whose own ways to list its parameters are not those of torch."""

    def parameters(self, recurse: bool = True) -> Any:
        raise AssertionError

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


def test_parameters_are_listed_by_torchs_own_method(bench: Bench) -> None:
    model = Odd()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    train(bench, model, optimizer)
    found = bench.said()
    assert found is not None
    assert found.part == "model.backbone"


def test_without_torch_it_waits() -> None:
    modules: dict[str, Any] = {"torch": None}  # as of an import that was refused
    bench = Bench(modules)
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer, 7)
    modules["torch"] = torch
    train(bench, model, optimizer, ENOUGH + BETWEEN)
    assert bench.said() is not None


def test_too_many_tensors_are_not_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallmeter.sources.gradients.MOST_TENSORS", 5)
    model = Net()
    optimizer = sgd(model.head)
    train(bench, model, optimizer, FIRST_STEP + (TRIES + 1) * BETWEEN)
    assert bench.said() is None
    assert bench.is_done


class Holder:
    """An object of the program's that has a model."""

    def __init__(self, model: nn.Module) -> None:
        self.net = model
        self.other = 3

    def names(self) -> dict[str, nn.Module]:
        return dict(models_of(sys._getframe(), nn.Module))


class Secretive:
    """Whose attributes are code: none of it may be run."""

    @property
    def __dict__(self) -> Any:  # type: ignore[misc]
        raise AssertionError

    @property
    def __class__(self) -> Any:
        raise AssertionError


def test_where_models_are_known() -> None:
    model = Net()
    holder = Holder(nn.Tanh())

    def look(model: Any, held: Any, named: Any, holder: Any, secret: Any, kind: Any) -> dict[str, type]:
        return {name: type(found) for name, found in models_of(sys._getframe(), nn.Module)}

    named = {"a": nn.ReLU(), 3: nn.ReLU(), "of a person": nn.ReLU()}
    names = look(model, [model.head, 3], named, holder, Secretive(), Net)
    assert not any("person" in name for name in names)
    assert names["model"] is Net
    assert names["held[0]"] is nn.Linear
    assert names["named['a']"] is nn.ReLU
    assert names["holder.net"] is nn.Tanh
    assert "net" in holder.names()
    assert not any(name.startswith(("secret", "kind")) for name in names)


def test_a_model_inside_wrappers_has_the_programs_name(bench: Bench) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.module(x)
            return out

    inner = Net()
    model, optimizer = Wrapper(inner), sgd(inner.head)
    train(bench, model, optimizer)
    found = bench.said()
    assert found is not None
    assert found.part == "model.backbone"


def test_copies_are_models_of_their_own(bench: Bench) -> None:
    """Copies have no gradients: an average of the weights is none that gets some in vain."""
    model = Net()
    average = copy.deepcopy(model)
    optimizer = sgd(model)

    def follow() -> None:
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)

    train(bench, model, optimizer, after=follow)
    assert bench.said() is None


class Recommender(nn.Module):
    """A table of many rows beneath a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(20_000, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.items(ids))
        return out


def recommend(bench: Bench, model: nn.Module, steps: int, *, clear: Callable[[int], bool]) -> None:
    """Train, and clear the gradients at the end of steps."""
    optimizer = sgd(model)
    for index in range(steps):
        optimizer.zero_grad()
        model(torch.randint(20_000, (32,))).square().mean().backward()
        optimizer.step()
        if clear(index):
            optimizer.zero_grad()
        bench.boundary()


def test_a_table_whose_gradient_is_dense(bench: Bench) -> None:
    model = Recommender()
    recommend(bench, model, FIRST_STEP + 1, clear=lambda _: False)
    found = bench.dense()
    assert found is not None
    assert (found.part, found.kind, found.tables, found.numbers) == ("model.items", "Embedding", 1, 80_000)
    assert found.used_share < 0.05
    recommend(bench, model, ENOUGH, clear=lambda _: False)  # of another model nothing would be known
    assert bench.dense() is None
    assert bench.is_done


def test_a_gradient_that_is_there_later(bench: Bench) -> None:
    recommend(bench, Recommender(), ENOUGH + 2 * BETWEEN, clear=lambda index: index < FIRST_STEP + 2 * BETWEEN)
    assert bench.dense() is not None


def test_gradients_that_are_always_cleared(bench: Bench) -> None:
    recommend(bench, Recommender(), FIRST_STEP + (TABLE_LOOKS + 1) * BETWEEN, clear=lambda _: True)
    assert bench.dense() is None
    assert bench.is_done


def test_a_model_without_tables_has_none(bench: Bench) -> None:
    model = Net()
    train(bench, model, sgd(model))
    found = bench.dense()
    assert found is not None
    assert found.tables == 0


def descend(bench: Bench, model: nn.Module, optimizer: Any, scale: float, steps: int) -> None:
    """Train with a loss that is so much smaller."""
    for _ in range(steps):
        optimizer.zero_grad()
        (scale * model(torch.randn(4, 6)).mean()).backward()
        optimizer.step()
        bench.boundary()


@pytest.mark.parametrize(
    ("scale", "gradients", "states"), [(1.0, 0.0, 0.0), (1e-39, 1.0, 0.5), (1e-20, 0.0, 0.5)], ids=str
)
def test_numbers_next_to_zero(scale: float, gradients: float, states: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam keeps a mean of the gradients, and one of their squares: of the smallest these are zero."""
    monkeypatch.setattr("stallmeter.timing.subnormal.are_slow", lambda: True)
    bench = Bench(number_looks=(FIRST_STEP,))
    model = nn.Linear(6, 2)
    descend(bench, model, torch.optim.Adam(model.parameters()), scale, FIRST_STEP + 1)
    found = bench.subnormal()
    assert found is not None
    assert found.gradients == pytest.approx(gradients, abs=0.1)
    assert found.states == pytest.approx(states, abs=0.1)


def test_they_are_looked_for_a_few_times(bench: Bench) -> None:
    bench = Bench(number_looks=(FIRST_STEP, ENOUGH + BETWEEN))
    model = nn.Linear(6, 2)
    optimizer = sgd(model)
    descend(bench, model, optimizer, 1.0, FIRST_STEP + 1)
    first = bench.subnormal()
    assert first is not None
    assert (first.gradients, first.states) == (0.0, None)
    descend(bench, model, optimizer, 1.0, ENOUGH + TABLE_LOOKS * BETWEEN)
    assert bench.subnormal() is not None
    descend(bench, model, optimizer, 1.0, LAST)
    assert bench.subnormal() is None
    assert bench.is_done

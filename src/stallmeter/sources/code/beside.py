"""Which code of the training thread is neither model nor wait: a metric, a plot, an optimizer in Python.

To the ledger of a plain loop the body of a step is one piece. Its stacks tell more: what lies below a module's call,
in the backward pass or in a collective is the training itself, and so are the functions that call these: their own
lines may be a loss, or stand for a device. What is left are functions that a user has put beside it, and libraries
without a model or a loss that those functions call. Before the model
is called such a function prepares the batch, before the gradients are computed it may be a loss, and what is called
after that is neither.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, pairwise
from operator import not_

from ...records import SENDS_OBJECTS, CodeSpot
from ...records.packages import NO_MODEL, TORCHS_FILES
from .fold import Frame, Seen, owner
from .hooks import in_hooks_of_gradients
from .taken import makes_next_batch, stands_without_gradients, takes_no_gradient, takes_nothing_made
from .whose import Function

PICKLES = frozenset({"_object_to_tensor", "_tensor_to_object"})
"""What turns objects into bytes for other ranks, and back; the rest of such a collective waits for them."""

JUDGES = re.compile(r"(?:Loss(?:es)?|Criterion|Metrics?|MetricCollection|_loss|_criterion|_metric)\.\w+$")
"""End of the name of a module's method that judges what the model made: it is called like a model, and is none. By the
whole word, for a network may be called geometric. How much it holds that is trained would tell, too, but stacks show
functions and no objects."""

TRAINING_STEP = ".training_step"
"""End of the name of what Lightning calls for a step; with several ranks as it calls a module."""

SWITCHES = "torch/utils/_contextlib.py"
"""On the stack of what is decorated with ``no_grad``: an evaluation, or a model that is averaged. Who calls that trains
nothing there. Closures of optimizers are decorated with ``enable_grad``."""

Where = tuple[int, int]
"""Line, and place in the code; `Frame.where`."""


def below_training_step(one: Seen) -> Seen:
    """Return what a stack holds from the step on that a framework asks of the user's module.

    The call of a wrapper that leads to it is not yet one of the model.
    """
    names = [i for i, f in enumerate(one.stack) if f.function.own and f.function.name.endswith(TRAINING_STEP)]
    return Seen(one.stack[names[0] :], one.wall_s, one.cpu_s) if names else one


def below_judges(one: Seen) -> Seen:
    """Return a stack without the calls of modules that are losses and metrics: what these do is no model's work.

    A model that one of them calls is still one.
    """
    judged = [frame.function.role.is_module and _judges(one.stack[at:]) for at, frame in enumerate(one.stack)]
    if not any(judged):
        return one
    return Seen(tuple(compress(one.stack, map(not_, judged))), one.wall_s, one.cpu_s)


def _judges(stack: Sequence[Frame]) -> bool:
    called = next((frame.function for frame in stack if not frame.function.role.is_module), None)
    return called is not None and JUDGES.search(called.name) is not None


def beside(seen: Sequence[Seen], *, modules: bool = False) -> list[Seen]:
    """Return the stacks whose time is the user's own and no part of the model; none where no module was seen.

    A model made of plain functions cannot be told from what stands beside it.

    Args:
        seen: Of the steps.
        modules: Whether it is known otherwise that none of it is such a model.
    """
    training = _training(seen)
    modules = modules or any(frame.function.role.is_module for one in seen for frame in one.stack)
    return [one for one in seen if _is_beside(one.stack, training)] if modules else []


def told_with_helpers(seen: Sequence[Seen], *told: Sequence[CodeSpot]) -> list[tuple[CodeSpot, ...]]:
    """Return functions beside the model, each with the one that the training calls for it: what it calls is one piece.

    Args:
        seen: Of the steps.
        *told: The functions, in as many groups as are wanted.
    """
    training, times = _training(seen), defaultdict[tuple[str, str], Counter[str]](Counter)
    interpreting_s: dict[tuple[str, str], float] = defaultdict(float)
    for one in seen:
        at = owner(one.stack)
        begun = max((i for i, frame in enumerate(one.stack) if frame.function in training), default=-1)
        helper = next((f.function for f in one.stack[begun + 1 :] if f.function.own), None)
        if at is not None and helper is not None:
            function = one.stack[at].function
            times[function.file, function.name][helper.name] += round(1e9 * one.wall_s)
            interpreting_s[function.file, function.name] += one.wall_s if one.stack[-1].interprets else 0.0
    helpers = {key: counted.most_common(1)[0][0] for key, counted in times.items()}
    trains = {(function.file, function.name) for function in training}

    def with_helper(spot: CodeSpot) -> CodeSpot:
        key = spot.file, spot.function
        return replace(
            spot,
            within=helpers.get(key, ""),
            interpreting_s=min(spot.wall_s, interpreting_s[key]),
            trains=key in trains,
        )

    return [tuple(map(with_helper, spots)) for spots in told]


def _training(seen: Sequence[Seen]) -> set[Function]:
    """Return the user's functions that call the model, have its gradients computed, or meet other ranks."""
    found: set[Function] = set()
    for one in seen:
        at = _model_at(one.stack)
        if at is not None:
            found.update(frame.function for frame in one.stack[:at] if frame.function.own)
    return found


def after_gradients(seen: Sequence[Seen], *, optimizer: bool = False) -> list[Seen]:
    """Return which stacks are of what a step does once it has its gradients.

    The lines of a function that has them computed tell: what it calls from a later line comes after them. It may be a
    framework's, which then calls what clips the gradients, or a handler of the end of a step. If what is called calls
    the model, to draw what it makes say, the model's time is its own. Stacks of an optimizer are left out, those that
    wait for other ranks, and those that sleep, but in a model: that may stand for a device. Where no optimizer of torch
    is known of, any of them may be one.

    Args:
        seen: Of the steps.
        optimizer: Whether a step of an optimizer was heard of; where not, one must have been seen.
    """
    if not _is_updated(seen, optimizer=optimizer):
        return []
    lines = _lines_to(_computes_gradients, seen, frameworks=True)
    computed = {function: max(found) for function, found in lines.items()}
    modules = any(frame.function.role.is_module for one in seen for frame in one.stack)
    return [_without_model(one) for one in seen if modules and _is_after(one.stack, computed)]


def between(seen: Sequence[Seen], *, optimizer: bool = False) -> list[Seen]:
    """Return which stacks beside the model are of what a step does from the call of its model until it has gradients.

    Those that sleep are left out: that may stand for a device; and those of the next batch, see `early`.

    Args:
        seen: Of the steps.
        optimizer: As in `after_gradients`; without any, it may be what these stacks are of.
    """
    if not _is_updated(seen, optimizer=optimizer):
        return []
    later = set(map(id, (*after_gradients(seen, optimizer=optimizer), *without_gradients(seen))))
    called = _calls_of_model(seen)
    found = [one for one in beside(seen) if id(one) not in later and not one.stack[-1].sleeps]
    return [one for one in found if _is_from(one.stack, called) and not _is_early(one.stack, called)]


def from_model_to_gradients(seen: Sequence[Seen], *, optimizer: bool = False) -> list[tuple[Seen, int]]:
    """Return the stacks of `between` with those of the training's own lines, each with the frame that has come so far.

    Args:
        seen: Of the steps.
        optimizer: As in `after_gradients`; without any, it may be what these stacks are of.
    """
    if not _is_updated(seen, optimizer=optimizer):
        return []
    called = _calls_of_model(seen)
    gradients = {function: min(lines) for function, lines in _lines_to(_computes_gradients, seen).items()}
    found = []
    for one in seen if gradients else ():
        around = None if _model_at(one.stack) is not None else _innermost(one.stack, called)
        if around is None or any(frame.function.file.startswith(SWITCHES) for frame in one.stack[around:]):
            continue
        frame = one.stack[around]
        is_before = frame.function not in gradients or frame.where < gradients[frame.function]
        if is_before and _is_from(one.stack, called) and not _is_early(one.stack, called):
            found.append((one, around))
    return found


def without_gradients(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks behind the call of the model are of a call through which no gradient flows: a score, say.

    Args:
        seen: Of the steps.
    """
    called = _calls_of_model(seen)
    found = [one for one in beside(seen) if not one.stack[-1].sleeps and _is_from(one.stack, called)]
    return [one for one in found if _takes_no_gradient(one.stack, called)]


def _takes_no_gradient(stack: Sequence[Frame], called: Mapping[Function, Where]) -> bool:
    around = _innermost(stack, called)
    if around is None or around + 1 == len(stack):
        return False
    if any(frame.function.file.startswith(SWITCHES) for frame in stack[around:]):
        return True
    since, frame = called[stack[around].function][0], stack[around]
    if takes_no_gradient(frame.path, since, frame.line):
        return True
    # A library's call may be a penalty on parameters that the text does not name.
    own = stack[around + 1].function.own and not _is_early(stack, called)
    return own and takes_nothing_made(frame.path, since, frame.line)


def early(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks between the model and its gradients are of a call that takes nothing of what the model made.

    It is the next batch, made early: it is no part of the loss, and stands where it does for the sake of a device.

    Args:
        seen: Of the steps.
    """
    called = _calls_of_model(seen)
    gradients = {function: max(lines) for function, lines in _lines_to(_computes_gradients, seen).items()}
    found = [one for one in beside(seen) if _is_before(one.stack, gradients)]
    return [one for one in found if _is_from(one.stack, called) and _is_early(one.stack, called)]


def _is_early(stack: Sequence[Frame], called: Mapping[Function, Where]) -> bool:
    around = _innermost(stack, called)
    if around is None or around + 1 == len(stack) or not stack[around + 1].function.own:
        return False
    return makes_next_batch(stack[around].path, called[stack[around].function][0], stack[around].line)


def model_and_gradients_s(seen: Sequence[Seen]) -> tuple[float, float]:
    """Return the seconds below a module's call, and those in which gradients are computed: these are in no module's.

    Args:
        seen: Of the steps.
    """
    hooks = set(map(id, in_hooks_of_gradients(seen)))
    gradients = [
        one
        for one in seen
        if id(one) not in hooks and any(frame.function.role.computes_gradients for frame in one.stack)
    ]
    known = hooks | set(map(id, gradients))
    model = [one for one in seen if id(one) not in known and any(frame.function.role.is_module for frame in one.stack)]
    return sum(one.wall_s for one in model), sum(one.wall_s for one in gradients)


def before_model(seen: Sequence[Seen]) -> list[Seen]:
    """Return which stacks beside the model are of what a step does before it calls it, by the lines; or `early`.

    Args:
        seen: Of the steps.
    """
    called = _calls_of_model(seen)
    return [*(one for one in beside(seen) if _is_before(one.stack, called)), *early(seen)]


def before_training(seen: Sequence[Seen]) -> list[Seen]:
    """Return which come before a call that holds both the model and its gradients, or `early`: no part of either.

    Those that sleep are left out: that may stand for a device.

    Args:
        seen: Of the steps.
    """
    whole = _calls_of_training(seen)
    found = (*(one for one in beside(seen) if _is_before(one.stack, whole)), *early(seen))
    return [one for one in found if not one.stack[-1].sleeps]


def before_call(seen: Sequence[Seen]) -> list[Seen] | None:
    """Return the stacks of what a loop without a loader does before it calls its model: it makes or awaits its batch.

    The loop's own lines count like what they call. A model that no look has met is either quick or made of plain
    functions: then only what is asleep or in other libraries counts.

    Args:
        seen: Of the steps.

    Returns:
        None where there is no sign of a model, nor of such a wait.
    """
    called = _calls_of_model(seen)
    if called:
        before = [one for one in seen if _model_at(one.stack) is None and _is_before(one.stack, called)]
        return [*before, *early(seen)]
    gradients = {function: min(lines) for function, lines in _lines_to(_computes_gradients, seen).items()}
    waits = [one for one in seen if _is_elsewhere(one.stack)]
    return [one for one in waits if not gradients or _is_before(one.stack, gradients)] or None


def _calls_of_model(seen: Sequence[Seen]) -> dict[Function, Where]:
    """Return the lines from which functions of the user's call the model to train it; the first, where that is open.

    A function may call it for other reasons before: to evaluate, or to play a game. What stands in a block without
    gradients is none of training's where other calls do not.
    """
    lines = _lines_to(_is_module, seen)
    untrained = {
        (frame.function, frame.where)
        for one in seen
        for frame in one.stack
        if frame.function in lines and stands_in_block_without_gradients(frame)
    }
    first = {
        function: min([at for at in found if (function, at) not in untrained] or found)
        for function, found in lines.items()
    }
    return first | _calls_of_training(seen)


def _calls_of_training(seen: Sequence[Seen]) -> dict[Function, Where]:
    """Return the lines from which functions call another that has both the model called and its gradients computed."""
    model, gradients = _calls_to(_is_module, seen), _calls_to(_computes_gradients, seen)
    both = {function: calls & gradients.get(function, set()) for function, calls in model.items()}
    return {function: min(line for line, _ in calls) for function, calls in both.items() if calls}


def _calls_to(
    is_there: Callable[[Function], bool], seen: Sequence[Seen]
) -> dict[Function, set[tuple[Where, Function]]]:
    """Return the calls of the user's functions to others of theirs through which a function is got to, by caller."""
    calls: dict[Function, set[tuple[Where, Function]]] = defaultdict(set)
    for one in seen:
        path = _path_to(is_there, one.stack)
        for caller, callee in pairwise(path):
            if caller.function.own and callee.function.own:
                calls[caller.function].add((caller.where, callee.function))
    return calls


def _is_elsewhere(stack: Sequence[Frame]) -> bool:
    """Whether what a stack does is surely no model: it sleeps, or is in a library that is none of torch's."""
    if not stack or any(frame.function.package == "torch" for frame in stack):
        return False
    return stack[-1].sleeps or not stack[-1].function.own


def _lines_to(
    is_there: Callable[[Function], bool], seen: Sequence[Seen], *, frameworks: bool = False
) -> dict[Function, list[Where]]:
    """Return the lines of the user's functions from which a function is got to; those that never do are left out.

    Args:
        is_there: The function.
        seen: Of the steps.
        frameworks: Whether functions of other packages than torch count like the user's, those above a switch as well.
    """
    lines: dict[Function, list[Where]] = defaultdict(list)
    for one in seen:
        for frame in _above(is_there, one.stack) if frameworks else _path_to(is_there, one.stack):
            if frame.function.own or (frameworks and frame.function.package != "torch"):
                lines[frame.function].append(frame.where)
    return lines


def _above(is_there: Callable[[Function], bool], stack: Sequence[Frame]) -> Sequence[Frame]:
    return stack[: next((i for i, frame in enumerate(stack) if is_there(frame.function)), 0)]


def _path_to(is_there: Callable[[Function], bool], stack: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames of a stack above the first of a function; none where it is not on it.

    Those above a call that switches gradients on or off are left out, but where an optimizer does so for its closure.
    """
    path = _above(is_there, stack)
    updates = next((i for i, frame in enumerate(path) if frame.function.role.is_of_optimizer), len(path))
    switched = [i for i, frame in enumerate(path[:updates]) if frame.function.file.startswith(SWITCHES)]
    return path[switched[-1] :] if switched else path


def _innermost(stack: Sequence[Frame], functions: Mapping[Function, Where]) -> int | None:
    return next((i for i in reversed(range(len(stack))) if stack[i].function in functions), None)


def _is_before(stack: Sequence[Frame], called: Mapping[Function, Where]) -> bool:
    around = _innermost(stack, called)
    if around is None or stack[around].where >= called[stack[around].function]:
        return False
    return not _is_of_an_optimizer(stack[around:])  # a framework may have an optimizer call the whole step


def _is_from(stack: Sequence[Frame], called: Mapping[Function, Where]) -> bool:
    around = _innermost(stack, called)
    if around is None or stack[around].where < called[stack[around].function]:
        return False
    return not _is_of_an_optimizer(stack[around:])


def _is_after(stack: Sequence[Frame], computed: Mapping[Function, Where]) -> bool:
    around = next((i for i in reversed(range(len(stack))) if _tells(stack[i], computed)), None)
    if around is None or stack[around].where <= computed[stack[around].function]:
        return False
    if stack[-1].sleeps and not any(frame.function.role.is_module for frame in stack[around:]):
        return False
    begun = next((frame for frame in stack[around + 1 :] if frame.function.own or frame.function.role.is_model), None)
    is_own = begun.function.own if begun is not None else _calls_helper(stack[around:])
    if not is_own or _is_of_an_optimizer(stack[around:]):
        return False
    return not any(frame.function.role.is_of_ranks for frame in stack if not frame.function.own)


def _tells(frame: Frame, computed: Mapping[Function, Where]) -> bool:
    """Whether a frame tells what is before and after: a framework may call all hooks from one line."""
    if frame.function not in computed:
        return False
    return frame.function.own or frame.where != computed[frame.function]


def _without_model(one: Seen) -> Seen:
    at = _model_at(one.stack)
    return one if at is None else Seen(one.stack[:at], one.wall_s, one.cpu_s)


def stands_in_block_without_gradients(frame: Frame) -> bool:
    """Whether a function of the program's stands in a block of its own without gradients, as far as its text tells."""
    return frame.function.own and stands_without_gradients(frame.path, frame.function.first_line, frame.line)


def _is_updated(seen: Sequence[Seen], *, optimizer: bool) -> bool:
    """Whether an optimizer of torch is known of: one was heard of, or is on a stack."""
    return optimizer or any(_is_of_an_optimizer(one.stack) for one in seen)


def _is_of_an_optimizer(stack: Sequence[Frame]) -> bool:
    return any(frame.function.role.is_of_optimizer for frame in stack)


def _model_at(stack: Sequence[Frame]) -> int | None:
    """Return the frame of a stack in which the model begins; None without one."""
    if _sends_objects(stack):
        return None
    return next((i for i, frame in enumerate(stack) if frame.function.role.is_model), None)


def _sends_objects(stack: Sequence[Frame]) -> bool:
    return any(f.function.role.is_of_ranks and f.function.name.endswith(SENDS_OBJECTS) for f in stack)


def _is_module(function: Function) -> bool:
    return function.role.is_module


def _computes_gradients(function: Function) -> bool:
    return function.role.computes_gradients


def _is_beside(stack: Sequence[Frame], training: set[Function]) -> bool:
    at = owner(stack)
    if at is None or _model_at(stack) is not None:
        return False
    if _sends_objects(stack) and not any(frame.function.name in PICKLES for frame in stack):
        return False
    return stack[at].function not in training or _calls_helper(stack[at:])


def _calls_helper(stack: Sequence[Frame]) -> bool:
    """Whether the first function of a stack calls a library that holds no model: a metric in the loop itself."""
    called = stack[1].function if len(stack) > 1 else None
    if called is None or called.own:
        return False
    return called.package in NO_MODEL or called.file.startswith(TORCHS_FILES)

"""What a callback or a logger is to answer for, on a stack with the training around and the model beneath it."""

from __future__ import annotations

from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.handlers import Handlers
from stallmeter.sources.code.whose import Function


def _library(name: str, file: str, *, standard: bool = False) -> Function:
    package = file.partition("/")[0]
    return Function(name, file, False, f"{package}.{name}", package, standard)


MAIN = Function("main", "train.py", True)
STEP = Function("train_step", "train.py", True)
NET = Function("Net.forward", "net.py", True)
EMBED = Function("Net.embed", "net.py", True)
PROJECT = Function("Atlas.project", "atlas.py", True)
DRAW = Function("draw", "plots.py", True)
RUN = _library("Engine.run", "driver/engine.py")
FIRE = _library("Engine._fire", "driver/engine.py")
HANDLER = _library("HistogramHandler.__call__", "driver/handlers.py")
HISTOGRAM = _library("Writer.histogram", "board/writer.py")
CALL = _library("Module._call_impl", "torch/nn/modules/module.py")
CONV = _library("Conv.forward", "torch/nn/modules/conv.py")
WRAPS = _library("ContextDecorator.inner", "contextlib.py", standard=True)


def _seen(*functions: Function | tuple[Function, int]) -> Seen:
    frames = (Frame(one, 1) if isinstance(one, Function) else Frame(one[0], one[1], one[1]) for one in functions)
    return Seen(tuple(frames), 0.1)


def _functions(one: Seen) -> list[str]:
    return [frame.function.name for frame in one.stack]


OF_A_DRIVER = [_seen(MAIN, RUN, STEP, CALL, NET, EMBED, CALL, CONV)]


def test_who_has_a_library_drive_the_training_owns_nothing_of_what_it_calls() -> None:
    """The same line of the user's leads to the model and to a logger of a library's."""
    logged = _seen(MAIN, RUN, FIRE, HANDLER, HISTOGRAM)
    assert _functions(Handlers(OF_A_DRIVER).own(logged)) == ["Engine._fire", HANDLER.name, "Writer.histogram"]
    assert fold([logged]).spots[0].function == "main"
    assert fold([Handlers(OF_A_DRIVER).own(logged)]).spots[0].function == "HistogramHandler.__call__"


def test_another_call_from_the_same_function_is_its_own() -> None:
    logged = _seen((MAIN, 7), HISTOGRAM)
    assert Handlers(OF_A_DRIVER).own(logged) == logged


def test_a_loop_of_the_users_own_drives_itself() -> None:
    """What stands between its lines and the model is torch's, or comes with Python."""
    loop = [_seen(MAIN, CALL, NET), _seen(MAIN, WRAPS, STEP, CALL, NET)]
    logged = _seen(MAIN, HISTOGRAM)
    assert Handlers(loop).own(logged) == logged


def test_a_model_that_a_handler_calls_is_the_handlers() -> None:
    called = _seen(MAIN, RUN, FIRE, PROJECT, EMBED, CALL, CONV)
    assert _functions(Handlers(OF_A_DRIVER).own(called)) == ["Engine._fire", "Atlas.project"]
    unknown = _seen(MAIN, RUN, FIRE, PROJECT, CALL, CONV)
    assert _functions(Handlers([]).own(unknown)) == ["main", "Engine.run", "Engine._fire", "Atlas.project"]


def test_what_a_handler_calls_beside_the_model_stays_whole() -> None:
    drawn = _seen(MAIN, RUN, FIRE, PROJECT, DRAW)
    assert _functions(Handlers(OF_A_DRIVER).own(drawn))[-2:] == ["Atlas.project", "draw"]


def test_a_librarys_handler_that_calls_the_model_is_told_with_the_model() -> None:
    """None of the user's functions would be left."""
    called = _seen(MAIN, RUN, FIRE, CALL, NET)
    assert _functions(Handlers(OF_A_DRIVER).own(called)) == ["Engine._fire", "Module._call_impl", "Net.forward"]


def test_no_time_is_lost() -> None:
    for one in (*OF_A_DRIVER, _seen(MAIN, RUN, FIRE), _seen()):
        assert Handlers(OF_A_DRIVER).own(one).wall_s == one.wall_s

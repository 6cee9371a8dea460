"""What functions of torch's do for a training."""

from __future__ import annotations

import pytest

from stallmeter.sources.code.roles import NONE, Role, role_of
from stallmeter.sources.code.whose import Function


@pytest.mark.parametrize(
    ("file", "name", "role"),
    [
        ("torch/nn/modules/module.py", "Module._call_impl", Role(is_module=True, is_model=True)),
        ("torch/nn/modules/module.py", "Module.parameters", NONE),
        ("torch/_tensor.py", "Tensor.backward", Role(computes_gradients=True, is_model=True)),
        ("torch/_tensor.py", "Tensor.__iter__", NONE),
        ("torch/autograd/graph.py", "_engine_run_backward", Role(computes_gradients=True, is_model=True)),
        ("torch/autograd/grad_mode.py", "no_grad.__enter__", NONE),
        ("torch/_dynamo/eval_frame.py", "compile_wrapper", Role(is_model=True)),
        ("torch/_dynamo/eval_frame.py", "DisableContext.__call__.<locals>._fn", NONE),
        ("torch/distributed/distributed_c10d.py", "all_reduce", Role(is_model=True, is_of_ranks=True)),
        ("torch/distributed/c10d_logger.py", "_exception_logger.<locals>.wrapper", Role(is_of_ranks=True)),
        ("torch/optim/adam.py", "Adam.step", Role(is_of_optimizer=True)),
        ("matplotlib/figure.py", "Figure.savefig", NONE),
    ],
)
def test_role_of(file: str, name: str, role: Role):
    assert role_of(file, name, own=False) == role
    assert Function(name, file, own=False).role == role


def test_what_the_user_wrote_is_no_model():
    """A program may lie in a folder of torch's name: what it calls tells, not where it stands."""
    assert not role_of("torch/_dynamo/mine.py", "run", own=True).is_model
    assert not role_of("torch/optim/mine.py", "step", own=True).is_of_optimizer

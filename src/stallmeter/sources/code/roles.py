"""What functions of torch's do for a training, by where they are defined: a stack is asked for it again and again."""

from __future__ import annotations

from typing import NamedTuple

MODULE, CALL = "torch/nn/modules/module.py", "call_impl"
"""Each call of a module passes it, in a method named so; who reads a module's attributes or parameters calls none."""

MODEL = ("torch/_dynamo/", "torch/_functorch/", "torch/_inductor/", "torch/distributed/")
"""Folders of what computes a model, and of the exchange of its gradients."""

RANKS = "torch/distributed/"
"""Folder of what waits for other ranks."""

WRAPS = "torch/distributed/c10d_logger.py"
"""Around each call of a collective: which one it is, the next frame tells."""

BACKWARD = "torch/_tensor.py"
"""Holds `Tensor.backward`, beside methods that anybody may call."""

MODES = ("torch/autograd/grad_mode.py", "torch/autograd/profiler.py")
"""Files of that folder that compute none: who switches gradients on and off, or marks a stretch of code."""

NOT_COMPILED = "DisableContext"
"""Around what torch is told not to compile, such as a framework's logging: in its compiler's folder, and no model."""

GRADIENTS, OPTIMIZERS = "torch/autograd/", "torch/optim/"
"""Folders of what computes gradients, and of what takes a step along them."""


class Role(NamedTuple):
    """What a function does for a training."""

    is_module: bool = False
    """Whether each call of a module passes it."""
    computes_gradients: bool = False
    is_model: bool = False
    """Whether a model begins with it: its call, its gradients, or their exchange."""
    is_of_ranks: bool = False
    """Whether it waits for other ranks."""
    is_of_optimizer: bool = False
    """Whether it takes a step along the gradients."""


NONE = Role()


def role_of(file: str, name: str, *, own: bool) -> Role:
    """Return what a function does for a training.

    Args:
        file: Where it is defined; of a library, from its package on.
        name: Qualified within its module.
        own: Whether it is the user's.
    """
    if not file.startswith("torch/"):
        return NONE
    is_module = file.startswith(MODULE) and CALL in name
    in_gradients = file.startswith(GRADIENTS) or (file == BACKWARD and name.endswith("backward"))
    gradients = not own and in_gradients and not file.startswith(MODES)
    model = is_module or gradients or file.startswith(MODEL)
    passes_on = own or file == WRAPS or NOT_COMPILED in name
    optimizer = not own and file.startswith(OPTIMIZERS)
    return Role(is_module, gradients, model and not passes_on, file.startswith(RANKS), optimizer)

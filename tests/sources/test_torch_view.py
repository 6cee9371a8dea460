"""PyTorch's own view, on the real torch without CUDA and on a fake one with it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from stallmeter.records import AllocatorSample
from stallmeter.sources.torch_view import AllocatorSource, model_facts, numeric_facts, optimizer_info

from ..conftest import FakeTime
from ..simulated_gpu import SimulatedGpu
from .fake_torch import fake_torch


def test_the_allocator_of_each_device_in_use():
    torch = fake_torch(SimulatedGpu(FakeTime()), devices=2)
    torch.cuda.stats = {
        1: {
            "allocated_bytes": {"all": {"current": 10, "peak": 30}},
            "reserved_bytes": {"all": {"current": 40, "peak": 50}},
            "num_alloc_retries": 3,
            "num_ooms": 1,
        }
    }
    (sample,) = AllocatorSource({"torch": torch}).sample(5.0)
    assert sample == AllocatorSample(
        time_s=5.0,
        index=1,
        allocated_bytes=10,
        allocated_peak_bytes=30,
        reserved_bytes=40,
        reserved_peak_bytes=50,
        alloc_retries=3,
        ooms=1,
    )
    torch.cuda.initialized = False
    assert AllocatorSource({"torch": torch}).sample(6.0) == ()
    assert AllocatorSource({}).sample(6.0) == ()


def test_a_real_torch_without_cuda_is_not_initialised():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert AllocatorSource().sample(0.0) == ()
    assert not torch.cuda.is_initialized()


def test_how_it_computes():
    torch = pytest.importorskip("torch")
    found = numeric_facts()
    assert found is not None
    assert found["tf32_matmul"] is torch.backends.cuda.matmul.allow_tf32
    assert found["float32_matmul_precision"] in ("highest", "high", "medium")
    assert found["autocast"] is None
    assert numeric_facts({}) is None
    assert numeric_facts({"torch": SimpleNamespace(backends=SimpleNamespace())}) is not None


def test_the_source_imports_nothing():
    """What looks for torch must not be what loads it."""
    code = (
        "import sys; from stallmeter.sources import cuda, syncs, torch_view, deep;"
        "from stallmeter.timing.clock import *;"
        "from stallmeter.timing.ledger import Ledger; cuda.CudaSource(StepClock(Ledger())).sample(0.0);"
        "torch_view.AllocatorSource().sample(0.0); assert torch_view.numeric_facts() is None;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_model_computes_with():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1).half(), torch.nn.LazyLinear(3))
    assert model_facts(model) == {"parameters": 13, "parameter_dtypes": {"float32": 10, "float16": 3}, "compiled": "no"}


@pytest.mark.parametrize(
    ("kind", "options", "fused", "may_fuse"),
    [
        ("AdamW", {}, False, True),
        ("SGD", {"foreach": True}, False, True),
        ("Adam", {"fused": True}, True, True),
        ("Adagrad", {}, False, True),
        ("Adam", {"differentiable": True}, False, False),
        ("RMSprop", {}, False, False),
    ],
)
def test_how_an_optimizer_is_set_up(
    kind: str, options: dict[str, bool], fused: bool, may_fuse: bool, monkeypatch: pytest.MonkeyPatch
):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
    if options.get("fused") and torch.__version__ < "2.4":
        pytest.skip("fused optimizers on a CPU came with torch 2.4")
    made = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    for wrapped in (made, SimpleNamespace(optimizer=made)):
        info = optimizer_info(wrapped)
        assert info is not None
        assert (info.kind, info.tensors, info.fused) == (kind, 4, fused)
        assert info.may_fuse == (may_fuse and torch.__version__ >= "2.4")
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    older = optimizer_info(made)
    assert older is not None
    assert not older.may_fuse


@pytest.mark.parametrize(
    ("kinds", "half", "share"),
    [
        (("float32", "float32"), "", 0.0),
        (("bfloat16", "bfloat16"), "bfloat16", 1.0),
        (("float16", "float32"), "float16", 0.8),
        (("float64", "bfloat16"), "bfloat16", 0.2),
    ],
)
def test_numbers_of_16_bits_that_are_trained_on_a_cpu(kinds: tuple[str, str], half: str, share: float):
    torch = pytest.importorskip("torch")
    made = [
        torch.nn.Parameter(torch.zeros(n, dtype=getattr(torch, kind))) for n, kind in zip((8, 2), kinds, strict=True)
    ]
    elsewhere = torch.nn.Parameter(torch.zeros(90, dtype=torch.float16, device="meta"))
    info = optimizer_info(torch.optim.SGD([*made, elsewhere], lr=0.1))
    assert info is not None
    assert (info.half, info.half_share) == (half, pytest.approx(share))
    nowhere = optimizer_info(torch.optim.SGD([elsewhere], lr=0.1))
    assert nowhere is not None
    assert (nowhere.half, nowhere.half_share) == ("", 0.0)


@pytest.mark.parametrize(
    ("kinds", "share"),
    [
        (("float32", "float16"), 0.0),
        (("float64", "float64"), 1.0),
        (("float32", "float64"), 0.2),
        (("complex128",), 1.0),
    ],
)
def test_numbers_of_64_bits(kinds: tuple[str, ...], share: float):
    """On any device: only the type is asked for."""
    torch = pytest.importorskip("torch")
    made = [
        torch.nn.Parameter(torch.zeros(n, dtype=getattr(torch, kind), device="meta"))
        for n, kind in zip((8, 2), kinds, strict=False)
    ]
    info = optimizer_info(torch.optim.SGD([*made, torch.nn.UninitializedParameter()], lr=0.1))
    assert info is not None
    assert info.double_share == pytest.approx(share)


def test_an_optimizer_that_cannot_be_fused_here():
    torch = pytest.importorskip("torch")

    class Own(torch.optim.Adam):
        pass

    elsewhere, here = (torch.nn.Parameter(torch.zeros(2, device=device)) for device in ("meta", "cpu"))
    for made in (torch.optim.Adam([elsewhere]), Own([here])):
        info = optimizer_info(made)
        assert info is not None
        assert not info.may_fuse
    assert optimizer_info(SimpleNamespace(step=lambda: None)) is None


def test_compiled():
    torch = pytest.importorskip("torch")
    inner = torch.nn.Linear(4, 2)
    assert model_facts(torch.compile(inner))["compiled"] == "whole"
    assert model_facts(torch.nn.Sequential(torch.compile(inner)))["compiled"] == "parts"
    inner.compile()
    assert model_facts(inner)["compiled"] == "whole"
    module = torch.nn.Linear(1, 1)
    module._compiler_ctx = {"compiler": "dynamo"}
    assert model_facts(module)["compiled"] == "whole"

"""`stallmeter probe` as a user meets it."""

from __future__ import annotations

import json
import logging
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter import cli
from stallmeter.errors import SettingError
from stallmeter.probing.target import import_target

from ..warm import Forks

FACTORY = textwrap.dedent(
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import beside

    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8)

    def plain():
        network = torch.nn.Linear(beside.WIDTH, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        def step(batch):
            optimizer.zero_grad()
            network(batch[0]).sum().backward()
            optimizer.step()

        return step, loader

    pair = plain()

    class Namespace:
        inner = staticmethod(plain)

    def lightning(third=None):
        import lightning.pytorch as pl

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, batch_idx):
                return self.layer(batch[0]).sum()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return (Module(), loader, {"accumulate_grad_batches": 2} if third is None else third)

    def nothing():
        return None

    def network():
        return torch.nn.Linear(4, 1), loader

    def needs(width):
        return plain()

    def wrong_third():
        return lightning(third=3)
    """
)


pytestmark = pytest.mark.usefixtures("quick_collections")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "factory_of_a_test.py").write_text(FACTORY)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    return tmp_path


@pytest.fixture
def imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder as the current one, and nothing left of what is imported from it."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in ("factory_of_a_test", "beside", "imports_too_much"):
        sys.modules.pop(name, None)


PROGRAM = "import sys; from stallmeter import cli; sys.exit(cli.main(['probe', *sys.argv[1:]]))"


def call(forks: Forks, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which has imported torch."""
    done: subprocess.CompletedProcess[str] = forks.run(
        PROGRAM, *arguments, cwd=folder, env={**os.environ, "COLUMNS": "80"}
    )
    return done


PLAIN = ("--seconds", "0.05", "--sweep-workers", "0,1", "--sweep-batch-size", "4")


def check_plain(folder: Path, out: str) -> None:
    assert "The run reaches" in out
    assert "num_workers  predicted  measured" in out
    assert list(folder.glob("stallmeter*")) == []


@pytest.mark.long
def test_plain(forks: Forks, folder: Path) -> None:
    done = call(forks, folder, "factory_of_a_test:plain", *PLAIN)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    check_plain(folder, done.stdout)


def test_a_file_and_a_pair_that_is_made_already(imported: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "factory_of_a_test.py:pair", *PLAIN]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    check_plain(imported, out)


@pytest.mark.long
def test_lightning(
    forks: Forks, imported: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning's own talk is left out, so that stdout is JSON and nothing else."""
    # Lightning keeps the stderr that there was when it was imported: one that another test captured is closed by now.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    out = imported / "out.json"
    arguments = ("factory_of_a_test.py:lightning", "--seconds", "0.05", "--format", "json")
    done = call(forks, imported, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["framework"].startswith("lightning ")
    assert document["together"]["samples_per_s"] > 0
    assert document["restored"] == ["Module"]
    assert cli.main(["probe", *arguments, "--output", str(out)]) == 0
    assert capfd.readouterr() == ("", "")
    assert json.loads(out.read_text()).keys() == document.keys()
    assert not (imported / "lightning_logs").exists()
    assert not (imported / "checkpoints").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("factory_of_a_test", "names no factory"),
        ("nowhere.py:plain", "there is no file 'nowhere.py'"),
        ("nowhere_at_all:plain", "there is no module 'nowhere_at_all'"),
        ("factory_of_a_test.py:lost", "has no 'lost'"),
        ("factory_of_a_test.py:nothing", "gives NoneType; it must give (module, data)"),
        ("factory_of_a_test.py:needs", "without arguments: missing a required argument: 'width'"),
        ("factory_of_a_test.py:network", "gives Linear first; it must give"),
        ("factory_of_a_test.py:wrong_third", "gives int as third; it must give"),
    ],
)
def test_mistakes(imported: Path, capsys: pytest.CaptureFixture[str], target: str, words: str) -> None:
    """One line on stderr and exit status 2."""
    assert cli.main(["probe", target]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error


def test_a_run_that_nothing_would_be_sent_to(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "factory_of_a_test:plain", "--run-id", "abc", "--trackers", "none"]) == 2
    assert "--trackers none sends nothing: leave out one of them" in capsys.readouterr().err


def test_wrong_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--sweep-workers", "two"], ["--sweep-batch-size", "0"], ["--trackers", "x"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(["probe", "x.py:y", *arguments])
        assert caught.value.code == 2
    assert "'two' is no number from 0 up" in capsys.readouterr().err


def test_a_failing_factory_shows_its_traceback(forks: Forks, tmp_path: Path) -> None:
    """It is the user's code: one line would not be enough to mend it."""
    (tmp_path / "failing_factory.py").write_text("def fails():\n    raise ZeroDivisionError('in the factory')\n")
    done = call(forks, tmp_path, "failing_factory.py:fails")
    assert done.returncode == 1
    assert "ZeroDivisionError: in the factory" in done.stderr
    assert 'failing_factory.py", line' in done.stderr


def test_names_inside_names(imported: Path) -> None:
    assert import_target("factory_of_a_test:Namespace.inner").keys() == {"step", "loader"}
    with pytest.raises(SettingError, match="rename the file"):
        import_target("factory_of_a_test.py:pair")


def test_a_missing_import_of_the_module_is_no_missing_module(imported: Path) -> None:
    (imported / "imports_too_much.py").write_text("import surely_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        import_target("imports_too_much:x")


@pytest.mark.long
def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs as it stands, with a real Trainer and real JPEG files: smaller ones, or decoding takes half a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stallmeter.demo.crops.CROP_PIXELS", 80)
    monkeypatch.setattr("stallmeter.demo.crops.INPUT_PIXELS", 64)
    example = Path(__file__).parents[2] / "examples" / "probe.py"
    monkeypatch.setattr(sys, "argv", [str(example), "0.05", "160"])
    runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    assert "batch 32" in out
    assert "64" in out
    assert [entry.name for entry in tmp_path.iterdir()] == ["demo-output"]

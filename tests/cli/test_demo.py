"""The demo and the examples, for real: real JPEG files, real training, a real MLflow store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlflow
import numpy as np
import pytest
from PIL import Image

from stallmeter.demo import EpochRate, epoch_rates, run_demo
from stallmeter.demo.crops import CROP_PIXELS, INPUT_PIXELS, Crops, write_crops
from stallmeter.demo.training import train
from stallmeter.recording import Header, Recorder, find_recording
from stallmeter.records import StepRecord
from stallmeter.report.model import read_history

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_crops(tmp_path_factory.mktemp("demo") / "crops", 160)


def test_crops_are_jpeg_of_two_photographs(files):
    """The files are real JPEG images, the photographs take turns."""
    assert len(files) == 160
    assert [file.parent.name for file in files[:4]] == ["china", "flower", "china", "flower"]
    with Image.open(files[0]) as image:
        assert image.format == "JPEG"
        assert image.size == (CROP_PIXELS, CROP_PIXELS)


def test_crops_are_written_once_and_the_same(files, tmp_path):
    """A second call writes nothing; another folder gets the same images."""
    before = files[7].stat().st_mtime_ns
    assert write_crops(files[0].parents[1], 160) == files
    assert files[7].stat().st_mtime_ns == before
    again = write_crops(tmp_path / "crops", 10)
    assert again[7].read_bytes() == files[7].read_bytes()


def test_interrupted_crops_are_completed(files, tmp_path):
    """What an interrupted first run left is replaced."""
    (tmp_path / "crops" / "china").mkdir(parents=True)
    (tmp_path / "crops" / "china" / "00000.jpg").write_bytes(b"half")
    (tmp_path / "crops.unfinished").mkdir()
    crops = write_crops(tmp_path / "crops", 4)
    assert crops[0].read_bytes() == files[0].read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["crops"]


@pytest.mark.parametrize("augment", [True, False])
def test_dataset(files, augment):
    """An item is an image in [0, 1], channels first, and the number of its photograph."""
    crops = Crops(files, augment=augment)
    assert len(crops) == 160
    image, label = crops[1]
    assert image.shape == (3, INPUT_PIXELS, INPUT_PIXELS)
    assert image.dtype == np.float32
    assert 0 <= image.min() <= image.max() <= 1
    assert label == 1
    assert np.array_equal(image, crops[1][0]) is not augment


def test_training_is_recorded_and_tracked(files, tmp_path):
    """One epoch leaves a recording with data wait in its ledger, and a run in MLflow."""
    outcome = train(tmp_path, files, epochs=1, num_workers=0)
    report = read_history(outcome.recording).report()
    assert report.steps == 2
    assert report.ended == "end"
    spent = {share.name: share.seconds for share in report.ledger}
    assert spent["data_wait"] > 0.05
    assert report.coverage_pct is not None
    assert report.coverage_pct > 99
    run = mlflow.MlflowClient(outcome.tracking_uri).get_run(outcome.run_id)
    assert run.info.experiment_id == outcome.experiment_id
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith((tmp_path / "artifacts").as_uri())
    experiment = mlflow.MlflowClient(outcome.tracking_uri).get_experiment(outcome.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    steps = outcome.next_steps()
    assert f"mlflow ui --backend-store-uri {outcome.tracking_uri}" in steps
    assert f"http://127.0.0.1:5000/#/experiments/{outcome.experiment_id}/runs/{outcome.run_id}" in steps


@pytest.mark.long
def test_what_is_applied_is_said(files, tmp_path, monkeypatch):
    """With ``apply`` the demo names the throughput of each epoch; whether anything changes is up to the machine."""
    monkeypatch.setattr("stallmeter.demo.crops.write_crops", lambda _: files)
    said = []
    outcome = run_demo(tmp_path, epochs=2, num_workers=0, apply=True, say=said.append)
    rates = epoch_rates(outcome.recording)
    assert [rate.epoch for rate in rates] == [0, 1]
    assert all(rate.samples_per_s > 0 for rate in rates)
    assert said[-2:] == [f"epoch {rate.epoch}: {rate.samples_per_s:.0f} images/s" for rate in rates]


def test_the_rate_of_an_epoch_leaves_validation_out(tmp_path):
    """Items over the time of the steps."""
    recorder = Recorder(tmp_path, Header(run_id="a", started_s=0.0))
    for index in range(4):
        recorder.write(
            StepRecord(
                index=index, epoch=index // 2, optimizer_step=None, tracker_step=index, samples=8, time_s=0.0,
                total_s=3.0 if index == 1 else 1.0 + index // 2, data_wait_s=0.0,
                validation_s=2.0 if index == 1 else 0.0,
            )
        )  # fmt: skip
    recorder.close()
    assert epoch_rates(tmp_path) == [EpochRate(0, 8.0), EpochRate(1, 4.0)]


LOOPS = ["plain_loop.py", "lightning_callback.py", "apply_workers.py"]


# Processes of their own that share what takes them longest: the imports of others.
PROGRAMS = """
import json, os, runpy, sys
import sklearn.datasets

children = {}
for example in sys.argv[2:]:
    child = os.fork()
    if not child:
        name = os.path.basename(example)
        os.chdir(name.removesuffix(".py"))
        sys.stdout.flush()
        os.dup2(os.open("stdout.txt", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT), 2)
        from stallmeter.engine import wiring
        wiring.start_drawing = lambda: None  # pictures take most of a short run's time
        sys.argv = [example, "1", "0", sys.argv[1]]
        runpy.run_path(example, run_name="__main__")
        sys.exit()
    children[child] = example
while children:
    child, status = os.wait()
    print(json.dumps([os.path.basename(children.pop(child)), status]), flush=True)
"""


@pytest.fixture(scope="module")
def examples(files, forks, tmp_path_factory):
    """The folder in which the examples ran side by side, each below its name, and their exit statuses."""
    folder = tmp_path_factory.mktemp("examples")
    for example in LOOPS:
        (folder / example).with_suffix("").mkdir()
        if example != "plain_loop.py":  # which writes the images itself
            shutil.copytree(files[0].parents[1], (folder / example).with_suffix("") / "demo-output/crops-160")
    done = forks.run(PROGRAMS, 160, *(EXAMPLES / example for example in LOOPS), cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder, dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.long
@pytest.mark.parametrize("example", LOOPS)
def test_examples_run(example, examples):
    """Each example runs as it stands and leaves a recording of its own."""
    folder = examples[0] / example.removesuffix(".py")
    said = (folder / "stderr.txt").read_text()
    assert examples[1][example] == 0, said
    report = read_history(find_recording(folder / "stallmeter")).report()
    assert report.steps == 5
    assert report.samples == 160
    assert "stallmeter: details: stallmeter report stallmeter/" in said

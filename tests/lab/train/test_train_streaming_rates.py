"""Memory and rates of training from files that are read anew in each epoch."""

import os
import re
from pathlib import Path

import pytest
from conftest import PROJECT, launch, losses_of, train
from read_rate import BIG, SMALL, measure_reading, measure_training, write_set
from streamed_runs import sha_of


@pytest.fixture(scope="module")
def large_set(tmp_path_factory, request):
    """4 GB with --full, else 100 MB."""
    return write_set(tmp_path_factory.mktemp("large"), BIG if request.config.getoption("--full") else SMALL)


def test_memory_does_not_grow_with_the_set(tmp_path, large_set, request):
    """Two ranks take 700 MB each of 4 GB; libraries and what is read ahead of a smaller set take less."""
    settings = ["training.global_batch_size=16384", "training.epochs=1", "training.engine=eager"]
    data = [f"data.data_path={large_set}/*.nc", "data.streaming=true", f"output.model_dir={tmp_path / 'run'}"]
    environ = {"PYTHONPATH": os.pathsep.join(str(folder) for folder in (PROJECT, Path(__file__).parent))}
    program = "from read_rate import train_and_weigh; train_and_weigh()"
    run = launch(["-c", program, *settings, *data], 2, timeout_s=600, environ=environ)
    assert run.returncode == 0, run.stderr
    resident = [float(number) for number in re.findall(r"resident (\d+) MB", run.stdout)]
    assert len(resident) == 2
    assert max(resident) < (700 if request.config.getoption("--full") else 550), resident


def test_batches_arrive_at_the_rate_of_sequential_reading(large_set):
    rates = []
    for _ in range(3):  # other work on the machine may slow down one of the two
        sequential_s, streamed_s, reads = measure_reading(large_set)
        assert set(reads.values()) == {1}
        rates.append(sequential_s / streamed_s)
        if rates[-1] > 0.7:
            break
    assert max(rates) > 0.7, rates


def test_training_from_files_takes_little_longer_than_reading_them(large_set):
    """The compiled step needs far less than the reading: what is read ahead hides it."""
    ratios = []
    for _ in range(3):
        reading_s, training_s = measure_training(large_set)
        ratios.append(training_s / reading_s)
        if ratios[-1] < 1.15:
            break
    assert min(ratios) < 1.15, ratios


def test_shared_memory_has_nothing_left_to_share(tmp_path, small_history):
    settings = (f"data.data_path={small_history}", "semantics=reference", "training.epochs=2")
    shared, own = (train(2, tmp_path / word, *settings, f"data.shared_memory={word}") for word in ("true", "false"))
    assert shared.returncode == own.returncode == 0, shared.stderr + own.stderr
    assert "data.shared_memory: each sample is held on one rank, there is nothing to share" in shared.stderr
    assert sha_of(shared) == sha_of(own)
    assert losses_of(tmp_path / "true") == losses_of(tmp_path / "false")

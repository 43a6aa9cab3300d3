"""Training from files that are read anew in each epoch, through the public command."""

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, launch, losses_of, train
from read_rate import BIG, SMALL, measure_reading, measure_training, write_set

from mpitrain.datatools.statistics import digest_of
from mpitrain.synthetic.history import write_synthetic_histories

STREAMING = ("data.streaming=true", "data.shuffle_buffer_samples=200")
SETTINGS = (*STREAMING, "training.global_batch_size=256", "training.epochs=2")


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """A pattern of two files of four times each."""
    folder = tmp_path_factory.mktemp("histories")
    paths = [folder / f"h{number}.nc" for number in (1, 2)]
    list(write_synthetic_histories(paths, seed=2, num_latitudes=48, num_longitudes=72, num_times=4))
    return f"data.data_path={folder}/h*.nc"


def sha_of(finished):
    return re.search(r"SHA-256 (\w+)", finished.stdout).group(1)


def test_one_hash_on_any_number_of_ranks_and_from_the_middle_of_an_epoch(tmp_path, histories):
    whole = train(1, tmp_path / "whole", histories, *SETTINGS)
    assert whole.returncode == 0, whole.stderr
    stopped = train(2, tmp_path / "parts", histories, *SETTINGS, "training.max_steps=20")
    assert stopped.returncode == 5, stopped.stderr
    rest = launch(
        ["-m", "mpitrain", "train", "--resume", f"output.model_dir={tmp_path / 'parts'}", "training.max_steps=null"], 3
    )
    assert rest.returncode == 0, rest.stderr
    assert sha_of(rest) == sha_of(whole)
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")
    steps = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[0])["step"]
    assert 20 % steps != 0, "stopped in the middle of an epoch"
    held = train(None, tmp_path / "held", histories, *SETTINGS[2:])
    assert sha_of(held) != sha_of(whole), "another order"
    records = [json.loads((tmp_path / name / "statistics.json").read_text()) for name in ("whole", "parts", "held")]
    assert all(record["sha256"] == digest_of(record) for record in records)
    assert records[0] == records[1]
    for one, other in zip(records[0]["variables"], records[2]["variables"], strict=True):
        for name, value in one.items():
            assert other[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-12))
    mean_predictor = [re.search(r"mean predictor's (\S+)", run.stdout).group(1) for run in (whole, held)]
    assert mean_predictor[0] == mean_predictor[1]


def test_a_file_that_changes_ends_all_ranks_with_one_line(tmp_path, histories):
    path = histories.removeprefix("data.data_path=").replace("*", "2")
    times = os.stat(path)

    def change():
        metrics, deadline_s = tmp_path / "run" / "metrics.jsonl", time.monotonic() + TIMEOUT_S
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))

    changing = threading.Thread(target=change)
    changing.start()
    run = train(2, tmp_path / "run", histories, *SETTINGS, "training.epochs=100000")
    changing.join()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run.returncode == 2
    (line,) = run.our_lines
    assert "h2.nc: changed since the run began" in line


@pytest.fixture(scope="module")
def large_set(tmp_path_factory, request):
    """4 GB with --full, else 100 MB."""
    return write_set(tmp_path_factory.mktemp("large"), BIG if request.config.getoption("--full") else SMALL)


@pytest.mark.lab
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


@pytest.mark.lab
def test_batches_arrive_at_the_rate_of_sequential_reading(large_set):
    rates = []
    for _ in range(3):  # other work on the machine may slow down one of the two
        sequential_s, streamed_s, reads = measure_reading(large_set)
        assert set(reads.values()) == {1}
        rates.append(sequential_s / streamed_s)
        if rates[-1] > 0.7:
            break
    assert max(rates) > 0.7, rates


@pytest.mark.lab
def test_training_from_files_takes_little_longer_than_reading_them(large_set):
    """The compiled step needs far less than the reading: what is read ahead hides it."""
    ratios = []
    for _ in range(3):
        reading_s, training_s = measure_training(large_set)
        ratios.append(training_s / reading_s)
        if ratios[-1] < 1.15:
            break
    assert min(ratios) < 1.15, ratios


@pytest.mark.lab
def test_shared_memory_has_nothing_left_to_share(tmp_path, small_history):
    settings = (f"data.data_path={small_history}", "semantics=reference", "training.epochs=2")
    shared, own = (train(2, tmp_path / word, *settings, f"data.shared_memory={word}") for word in ("true", "false"))
    assert shared.returncode == own.returncode == 0, shared.stderr + own.stderr
    assert "data.shared_memory: each sample is held on one rank, there is nothing to share" in shared.stderr
    assert sha_of(shared) == sha_of(own)
    assert losses_of(tmp_path / "true") == losses_of(tmp_path / "false")

"""Training from files that are read anew in each epoch, through the public command."""

import json
import os
import re
import threading
import time

import pytest
from conftest import launch, losses_of, train
from streamed_runs import sha_of

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
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text()):
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

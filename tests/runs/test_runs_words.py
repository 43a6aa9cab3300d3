"""What a run says of the samples that its skill is of, and of points that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import launch
from field_files import write_netcdf

from mpitrain.data.dataset.dataset import DataSummary
from mpitrain.runs.finish import describe_samples

FEW = "; too few for a reliable RMSE: mpitrain ensemble with ensemble.folds=5 holds out each sample once"


@pytest.mark.parametrize(
    ("held_out", "count", "expected"),
    [
        (644, 644, "Over all held-out samples, 644 values of each target."),
        (3, 3, f"Over all held-out samples, 3 values of each target{FEW}."),
        (1, 1, f"Over all held-out samples, 1 value of each target{FEW}."),
        (29, 20_000, f"Over all held-out samples, 29 fields, 20,000 values of each target{FEW}."),
        (1, 700, f"Over all held-out samples, 1 field, 700 values of each target{FEW}."),
        (30, 20_000, "Over all held-out samples, 30 fields, 20,000 values of each target."),
        (0, 40, "Over training samples, since none are held out: 40 values of each target."),
    ],
)
def test_a_skill_says_of_how_many_samples_it_is(held_out, count, expected):
    summary = DataSummary(100, held_out, 0, None, None, ("x",), ("y",))
    assert describe_samples(summary, count, choose_epoch=False) == expected


@pytest.mark.parametrize(("num_ranks", "streaming"), [(None, "false"), (2, "false"), (3, "true")])
def test_points_that_are_no_samples_are_counted_by_reason(
    tmp_path: Path, num_ranks: int | None, streaming: str
) -> None:
    """Of 10 x 8 x 6 points 5 rows are not read, too far south; of the others a third is masked, and 30 lack an area."""
    random, shape = np.random.default_rng(0), (10, 8, 6)
    mask, area = np.ones(shape), np.ones(shape[1:])
    mask[:, :, ::3], area[:, 1] = 0, 0
    variables = {name: (("time", "y", "x"), random.normal(size=shape)) for name in ("a", "b")}
    variables |= {"mask": (("time", "y", "x"), mask), "area": (("y", "x"), area)}
    variables |= {"lat": (("y",), np.arange(0.0, 80.0, 10.0)), "height": (("y",), np.arange(0.0, 80.0, 10.0))}
    path = write_netcdf(tmp_path / "f.nc", variables, "time", None, lat={"units": "degrees_north"})
    done = launch(["-m", "mpitrain", "--data", str(path), "--output", str(tmp_path / "run"), "training.epochs=1",
                   "variables.input_variables=[a]", "variables.output_variables=[b]", "domain.mask=mask > 0",
                   "domain.latitude_range=[45, 90]", "data.area_variable=area", "data.area_weighted=true",
                   f"data.streaming={streaming}"], num_ranks)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rule = "domain.mask=mask > 0, domain.latitude_range=[45.0, 90.0]"
    assert f"note: points not selected by {rule}: 360 of 480\n" in done.stderr
    assert "note: points not selected because their area (area) is 0 or missing: 30\n" in done.stderr
    (samples,) = (line for line in done.stdout.splitlines() if line.startswith("Samples"))
    assert samples.endswith(", 0 dropped, 390 not selected")
    trained, held_out = (int(part.split()[0]) for part in samples.removeprefix("Samples").split(",")[:2])
    assert trained + held_out == 90


def test_reference_semantics_count_them_too(tmp_path: Path) -> None:
    from mpitrain.synthetic.stand_in import write_stand_in

    path = tmp_path / "f.nc"
    write_stand_in(path, None, 0)
    found = []
    for semantics in ("standard", "reference"):
        done = launch(["-m", "mpitrain", "--data", str(path), "--output", str(tmp_path / semantics), "--epochs", "1",
                       f"semantics={semantics}"])  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append([line for line in done.stderr.splitlines() if line.startswith("note: points not selected by")])
    assert found[0] == found[1]
    assert len(found[0]) == 1

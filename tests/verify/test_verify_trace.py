"""Names of a trace: at which stage each arises, in which order, and that files keep them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_faults.table import FAULTS

from mpitrain.errors import DataError
from mpitrain.verify.trace import Trace, in_order, read_trace, stage_of, write_trace

IN_ORDER = (
    "selected_index",
    "partition_count",
    "partition_index",
    "input_mean",
    "input_std",
    "initial.fc1.weight",
    "initial.fc1.bias",
    "initial.fc2.weight",
    "initial.fc2.bias",
    "forward_step1",
    "loss_step1",
    "gradient_step1.fc1.weight",
    "gradient_step1.fc2.bias",
    "weights_step1.fc1.weight",
    "gradient_step2.fc1.weight",
    "gradient_step10.fc1.weight",
    "weights_step10.fc2.bias",
    "gradient_step1000.fc1.bias",
    "loss",
    "weights_final.fc1.weight",
    "weights_final.fc2.bias",
    "prediction",
    "jacobian",
    "zzz_of_nobody",
)


def test_names_are_ordered_as_differences_arise() -> None:
    # 2 comes before 10, fc1 before fc2, weights before biases; the unknown comes last.
    assert in_order(set(reversed(IN_ORDER))) == list(IN_ORDER)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("selected_index", "selected samples"),
        ("partition_count", "partition"),
        ("input_std", "statistics"),
        ("initial.fc1.bias", "initial weights"),
        ("forward_step1", "forward"),
        ("loss_step1", "loss at step 1"),
        ("gradient_step100.fc2.weight", "gradient at step 100"),
        ("weights_step10.fc1.weight", "weights at step 10"),
        ("loss", "losses"),
        ("weights_final.fc1.bias", "final weights"),
        ("prediction", "prediction"),
        ("jacobian", "Jacobian"),
        ("zzz_of_nobody", "unknown"),
    ],
)
def test_stage_of_a_name(name: str, stage: str) -> None:
    assert stage_of(name)[1] == stage


def test_every_fault_is_expected_at_a_stage_that_exists() -> None:
    stages = {stage_of(name)[1] for name in IN_ORDER}
    assert {fault.stage for fault in FAULTS} <= stages
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_file_keeps_every_bit(tmp_path: Path) -> None:
    tricky = np.array([-0.0, np.nan, np.inf, 1e30, np.finfo(np.float32).tiny / 4, 9.969209968386869e36], np.float32)
    arrays = {
        "loss": tricky,  # NetCDF's own fill value is in it
        "jacobian": np.arange(6.0).reshape(2, 3),
        "selected_index": np.array([-1, 0, 2**40]),
        "weights_final.fc2.bias": np.array([0.25], np.float32),
    }
    write_trace(tmp_path / "trace.nc", Trace(arrays, {"median_us_per_step": 1.5}))
    back = read_trace(tmp_path / "trace.nc")
    assert back.attributes == {"median_us_per_step": 1.5}
    assert back.arrays.pop("loss_step1").tobytes() == tricky[:1].tobytes()
    assert back.arrays.keys() == arrays.keys()
    for name, values in arrays.items():
        assert back.arrays[name].dtype == values.dtype
        assert back.arrays[name].shape == values.shape
        assert back.arrays[name].tobytes() == values.tobytes()


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no_trace.nc"
    path.write_text("text")
    for missing in (path, tmp_path / "nowhere.nc"):
        with pytest.raises(DataError, match=f"{missing.name}: cannot be read as a trace"):
            read_trace(missing)

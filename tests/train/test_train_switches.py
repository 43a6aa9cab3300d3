"""The switches of torch that a run sets for its whole process."""

import pytest
import torch
from played_runs import run_alone


@pytest.fixture(autouse=True)
def switches_as_before():
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]


@pytest.mark.parametrize("value", [True, False])
def test_deterministic_algorithms(value):
    torch.use_deterministic_algorithms(not value)
    run = run_alone("training.engine=eager", f"training.deterministic={str(value).lower()}")
    assert torch.are_deterministic_algorithms_enabled() is value
    run.steps(1)


@pytest.mark.parametrize("value", [True, False])
def test_tensor_float_32(value):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not value
    run_alone("training.engine=eager", f"training.allow_tf32={str(value).lower()}")
    assert torch.backends.cuda.matmul.allow_tf32 is value
    assert torch.backends.cudnn.allow_tf32 is value

"""Commands in this process, one rank of the real MPI library: a fast test starts no program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mpitrain.comm import start
from mpitrain.runs.reproduction import record


@contextmanager
def one_rank_in_this_process(folder: Path) -> Iterator[None]:
    """Run commands in `folder`, without an agent that watches the one rank, and without asking git."""
    num_threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "run_on_all_ranks", lambda body, watch: body(start.start_ranks(os.environ, watch)))
        patch.setattr(record, "git_state", lambda folder: None)
        patch.chdir(folder)
        for name, value in (
            ("MPITRAIN_STARTING_AFTER_S", "600"),
            ("TORCH_CPP_LOG_LEVEL", ""),
            ("KINETO_LOG_LEVEL", ""),
        ):
            patch.setenv(name, value)  # what a command sets for its own process stays within these tests
        yield
    if dist.is_initialized():  # by a command that ended with an error, which would have ended its process
        dist.destroy_process_group()
    torch.set_num_threads(num_threads)

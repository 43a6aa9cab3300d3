"""The files of a dense network for torch and the C++ program, which only torch can write: `model.pt` and its side file.

`python -m mpitrain.models.files.torch_files OWN MODEL PARENT` writes them beside `MODEL` from the run's own file `OWN`,
in a process that ends with the process PARENT: what it wrote later could stand in another run's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpitrain.cluster import finding_package, run_module
from mpitrain.errors import MpitrainError
from mpitrain.models.dense import DenseModel
from mpitrain.models.files.description import ModelDescription
from mpitrain.models.files.own_file import read_own_model

_PR_SET_PDEATHSIG = 1  # of Linux's sys/prctl.h


def write_torch_files(model: Any, path: Path, description: ModelDescription) -> None:
    """Write a `DenseModel` or a module of torch's as TorchScript to `path`, its normalisation beside. Loads torch.

    Raises OutputError.
    """
    from mpitrain.models.dense_module import torch_view
    from mpitrain.models.files.torchscript import save_model, save_normalization

    module: Any = torch_view(model)
    save_model(module, path, description)
    save_normalization(module.input_mean, module.input_std, path)


class TorchFilesWriter:
    """A process that loads torch and writes the files, while this one does something else."""

    def __init__(self, own_model: Path, path: Path) -> None:
        """Start it: it reads `own_model`, a `DenseModel`, and writes `path`."""
        self._path = path
        # What it says is not read: whoever finds that it failed writes the files here, and says why that fails.
        self._process = subprocess.Popen(
            [*run_module(__name__), str(own_model), str(path), str(os.getpid())],
            env=finding_package(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def has_written(self) -> bool:
        """Wait for the end of the process and return whether it has written the files."""
        return self._process.wait() == 0

    def end(self) -> None:
        """End the process, whatever it has written."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def torch_files_writer(own_model: Path, path: Path) -> Iterator[TorchFilesWriter | None]:
    """Give the process that writes the files, None where none can be started; it ends with the block."""
    try:
        writer = TorchFilesWriter(own_model, path)
    except OSError:  # no process or no memory is to be had
        yield None
        return
    try:
        yield writer
    finally:
        writer.end()


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)


def main(own_model: str, path: str, parent: str) -> int:
    """Write the files; return the exit code."""
    _end_with(int(parent))
    gc.disable()  # what the imports make stays to the end
    try:
        stored = read_own_model(Path(own_model))
        if not isinstance(stored.model, DenseModel):
            return 1
        write_torch_files(stored.model, Path(path), stored.description)
    except MpitrainError:
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    os._exit(code)  # the files are whole: sorting what torch has made takes as long again

"""Files of a dense network that only torch can write: `model.pt` and its normalisation, for torch and the C++ program.

`python -m mpitrain.models.files.torch_files OWN MODEL PARENT` writes `MODEL` and the file of its normalisation from the
run's own file `OWN`. The process ends when the process PARENT ends: a file that it wrote later could be in the folder
of another run.
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

_PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h


def write_torch_files(model: Any, path: Path, description: ModelDescription) -> None:
    """Write a `DenseModel` or a torch module as TorchScript to `path`, and its normalisation. Imports torch.

    Raises OutputError.
    """
    from mpitrain.models.dense_module import torch_view
    from mpitrain.models.files.torchscript import save_model, save_normalization

    module: Any = torch_view(model)
    save_model(module, path, description)
    save_normalization(module.input_mean, module.input_std, path)


class TorchFilesWriter:
    """A process that imports torch and writes the files while this process continues."""

    def __init__(self, own_model: Path, path: Path) -> None:
        """Start the process, which reads the `DenseModel` in the file `own_model` and writes `path`."""
        self._path = path
        # Its output is not read: if it fails, the caller writes the files itself and reports why that fails.
        self._process = subprocess.Popen(
            [*run_module(__name__), str(own_model), str(path), str(os.getpid())],
            env=finding_package(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def has_written(self) -> bool:
        """Wait for the end of the process and return whether it has written the files."""
        return self._process.wait() == 0

    def end(self) -> None:
        """Kill the process, also if it has not finished."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def torch_files_writer(own_model: Path, path: Path) -> Iterator[TorchFilesWriter | None]:
    """Yield the process that writes the files, None if it cannot be started; it is killed at the end of the block."""
    try:
        writer = TorchFilesWriter(own_model, path)
    except OSError:  # the limit of processes or memory is reached
        yield None
        return
    try:
        yield writer
    finally:
        writer.end()


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl
        sys.exit(1)


def main(own_model: str, path: str, parent: str) -> int:
    """Write the files; return the exit code."""
    _end_with(int(parent))
    gc.disable()  # objects of the imports live until the end
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
    os._exit(code)  # the files are complete; the interpreter's clean-up would take as long again

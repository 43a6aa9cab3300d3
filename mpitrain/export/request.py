"""What `mpitrain export` is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.errors import UserError

Say = Callable[[str], None]
DEFAULT_OUTPUTS = {
    "torchscript": "model.pt",
    "pt2": "model.pt2",
    "onnx": "model.onnx",
    "c": "emulator.c",
    "c++": "emulator.hpp",
    "fortran": "emulator.f90",
}
SOURCE_FORMATS = ("c", "c++", "fortran")
_ENDINGS = {"c": (".c", ".h"), "c++": (".hpp", ".h", ".hh", ".hxx"), "fortran": (".f90", ".F90", ".f08")}


@dataclass(frozen=True)
class ExportRequest:
    """What the command line asks for; see `run_weights.load_weights`.

    `build`: build the C++ program if need be. `trust_code`: build a network of the user's own code. `output` None: the
    format's own name. `members`: the folders of the other networks of an ensemble.
    """

    run: Path
    output: Path | None = None
    weights: str | None = None
    checkpoint: str | None = None
    build: bool = False
    trust_code: bool = False
    format: str = "torchscript"
    members: tuple[Path, ...] = ()

    @property
    def output_file(self) -> Path:
        """Return the file to write. Raises UserError where it cannot be one."""
        path = self.output or Path(DEFAULT_OUTPUTS[self.format])
        if path.is_dir():
            name = DEFAULT_OUTPUTS[self.format]
            raise UserError(f"--output {path}: is a folder; give a file such as {path / name}")
        endings = _ENDINGS.get(self.format)
        if endings and path.suffix not in endings:
            raise UserError(
                f"--output {path}: --format {self.format} writes {' or '.join(endings)}; give "
                f"{path.with_suffix(Path(DEFAULT_OUTPUTS[self.format]).suffix)}"
            )
        return path

"""What `mpitrain export` is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportRequest:
    """What the command line asks for; see `run_weights.load_weights`.

    `build`: build the C++ program if need be. `trust_code`: build a network of the user's own code. `output` None: the
    format's own name, which `run_export` sets. `members`: the folders of the other networks of an ensemble. `names`: of
    the format saber, texts DATA_NAME=MODEL_NAME. `collection`: of the format trainer, the settings of a collection; its
    `run` is a file of settings.
    """

    run: Path
    output: Path | None = None
    weights: str | None = None
    checkpoint: str | None = None
    build: bool = False
    trust_code: bool = False
    format: str = "torchscript"
    members: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    collection: Path | None = None

    @property
    def output_file(self) -> Path:
        """The file to write."""
        return self.output or Path("model.pt")

"""What `mpitrain export` is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.durable_files import check_output, write_durably
from mpitrain.errors import writing
from mpitrain.train.run_folder import MODEL_MARK

Say = Callable[[str], None]
# The beginnings of sources, their self-tests and a trainer; ONNX.
_MARK = r"ritten\W+by\W+mpitrain|(bits|those) of mpitrain predict|mpitrain onnx|" + MODEL_MARK


@dataclass(frozen=True)
class ExportRequest:
    """What the command line asks for; see `run_weights.load_weights`.

    `format` "": by the ending of `output`. `build`: build the C++ program if need be. `trust_code`: build a network of
    the user's own code. `output` None: the format's own name, which `run_export` sets. `members`: the folders of the
    other networks of an ensemble. `names`: of the format saber, texts DATA_NAME=MODEL_NAME; so are `mask_variable` and
    `mask_range`, LOW,HIGH. `collection`: of the format trainer, the settings of a collection; its `run` is a file of
    settings. `overwrite`: replace files that no export has written. `gpu_callable`: of the format fortran, write
    directives for kernels. `profile`: of the format mom6, which reader's sizes to check.
    """

    run: Path
    output: Path | None = None
    weights: str | None = None
    checkpoint: str | None = None
    build: bool = False
    trust_code: bool = False
    format: str = ""
    members: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    mask_variable: str = ""
    mask_range: str = ""
    collection: Path | None = None
    overwrite: bool = False
    gpu_callable: bool = False
    profile: str = ""

    @property
    def output_file(self) -> Path:
        """The file to write."""
        return self.output or Path("model.pt")

    def check_outputs(self, names: Iterable[str], inputs: Iterable[Path] = ()) -> None:
        """Raise OutputError where files of these names beside the output must not be written (see `check_output`)."""
        for path in (self.output_file, *map(self.output_file.with_name, names)):
            with writing(path, "give another --output"):
                check_output(path, _MARK, inputs, self.overwrite)

    def write_texts(self, files: Mapping[str, str], inputs: Iterable[Path] = ()) -> str:
        """Write texts to files of these names beside the output; return their paths. Raises OutputError."""
        self.check_outputs(files, inputs)
        for path, text in ((self.output_file.with_name(name), text) for name, text in files.items()):
            with writing(path, "check the folder, its permissions and space"):
                write_durably(path, text.encode())
        return ", ".join(str(self.output_file.with_name(name)) for name in files)

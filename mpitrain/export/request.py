"""The options of `mpitrain export`, and the check of its output files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.durable_files import check_output, write_durably
from mpitrain.errors import writing
from mpitrain.train.run_folder import MODEL_MARK

Say = Callable[[str], None]
# Recognises files that an export has written: sources, their self-tests, trainers, and ONNX.
_MARK = r"ritten\W+by\W+mpitrain|(bits|those) of mpitrain predict|mpitrain onnx|" + MODEL_MARK


@dataclass(frozen=True)
class ExportRequest:
    """The options of the command line; see `run_weights.load_weights` for `weights` and `checkpoint`.

    `format` "": selected by the extension of `output`. `build`: build the C++ program if it is not built. `trust_code`:
    run the user's own code to build a network. `output` None: the default name of the format, set by `run_export`.
    `members`: the folders of the other networks of an ensemble. `overwrite`: replace files that no export has written.
    Format saber: `names`, texts DATA_NAME=MODEL_NAME; `mask_variable`; `mask_range`, LOW,HIGH. Format trainer: `run` is
    a settings file, `collection` the settings file of a collection. Format fortran: `gpu_callable`, write directives
    for kernels. Format mom6: `profile`, the reader for which to check the numbers of inputs and outputs.
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
        """The path of the file to write."""
        return self.output or Path("model.pt")

    def check_outputs(self, names: Iterable[str], inputs: Iterable[Path] = ()) -> None:
        """Raise OutputError if the output or a file of these names next to it must not be written (`check_output`)."""
        for path in (self.output_file, *map(self.output_file.with_name, names)):
            with writing(path, "give another --output"):
                check_output(path, _MARK, inputs, self.overwrite)

    def write_texts(self, files: Mapping[str, str], inputs: Iterable[Path] = ()) -> str:
        """Write texts to files of these names next to the output; return their paths. Raises OutputError."""
        self.check_outputs(files, inputs)
        for path, text in ((self.output_file.with_name(name), text) for name, text in files.items()):
            with writing(path, "check the folder, its permissions and space"):
                write_durably(path, text.encode())
        return ", ".join(str(self.output_file.with_name(name)) for name in files)

"""Access to a run folder from Python: results, predictions and exports."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.errors import OutputError, UserError, one_line, reason_of
from mpitrain.python.tables import Report, Table

if TYPE_CHECKING:
    from mpitrain.config import RunConfig


@dataclass(frozen=True)
class Run:
    """A run or an ensemble in its folder. Files are read when an attribute needs them.

    Returned by `mpitrain.train`, `mpitrain.ensemble` and `mpitrain.open`.
    """

    path: Path
    """The folder."""
    trust_code: bool = False
    """Whether code that the folder names is run, also if you have not trained it."""

    @property
    def config(self) -> RunConfig:
        """All settings of the run. Raises ConfigError if ``config.yaml`` is missing or wrong."""
        from mpitrain.config import load_run_config
        from mpitrain.train import with_recorded_rules

        path = self.path / "config.yaml"
        return with_recorded_rules(load_run_config(path), path).config

    @property
    def metrics(self) -> Table:
        """Losses, learning rate and time of each epoch: lists of numbers by name, shown as a table in a notebook.

        Empty before the end of the first epoch, and for an ensemble. Raises OutputError if the file was not written by
        a run.
        """
        from mpitrain.observe import read_metrics

        path = self.path / "metrics.jsonl"
        records = read_metrics(path) if path.is_file() else []
        return Table.of_records([record for record in records if "train_loss" in record])

    @property
    def skill(self) -> Mapping[str, Mapping[str, Any]]:
        """`rmse`, `bias`, `r2` and `units` of each target on held-out samples; `r2` is None if it is not known.

        If no samples are held out: on training samples. For an ensemble: the skill of the mean of the members on the
        held-out samples of all folds. Empty before the run has ended. Raises UserError if the file was not written by
        a run.
        """
        of_all = [one for one in self._parts if one["kind"] == "all"]
        of_ensemble = {one["target"]: {key: one[key] for key in ("rmse", "bias", "r2", "units")} for one in of_all}
        found: Mapping[str, Mapping[str, Any]] = self._result.get("skill", of_ensemble)
        return found

    @property
    def skill_of_parts(self) -> Table:
        """Skill of an ensemble for each target, on all held-out samples and on those of each fold, time and group.

        Columns: `kind` ("all", "fold", "time", "group"), its `name`, `target`, `units`, `values` (their number),
        `bias`, `rmse`, `r2`. Empty if it is not known. Raises OutputError if the file was not written by an ensemble.
        """
        return Table.of_records(self._parts)

    @property
    def test_skill(self) -> Mapping[str, Mapping[str, Any]]:
        """As `skill`, on the data of ``data.test_path`` or the part ``data.test_split``; empty if there is none.

        Empty for an ensemble, whose members are not tested.
        """
        found: Mapping[str, Mapping[str, Any]] = self._result.get("test_skill", {})
        return found

    @property
    def weights_sha256(self) -> str | None:
        """SHA-256 of the weights, 64 hexadecimal digits; None before the run has ended, and for an ensemble."""
        return self._result.get("weights_sha256")

    @property
    def report(self) -> Report:
        """The report of the run: `str()` returns the path of the page; a notebook shows the page."""
        return Report(self.path / "report.html")

    @property
    def _parts(self) -> list[dict[str, Any]]:
        path = self.path / "skill.csv"
        if not (self.path / "ensemble.json").is_file() or not path.is_file():
            return []
        texts, numbers = ("kind", "name", "target", "units"), ("bias", "rmse", "r2")
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [
                    {key: row[key] for key in texts}
                    | {"values": int(row["values"])}
                    | {key: float(row[key]) if row[key] else None for key in numbers}
                    for row in csv.DictReader(file)
                ]
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise OutputError(f"{path}: was not written by an ensemble ({reason_of(error)})") from error

    @property
    def _result(self) -> Mapping[str, Any]:
        """The result in the run record. Raises UserError if the file was not written by a run."""
        from mpitrain.runs.reproduction.stored_record import read_record

        path = self.path / "run_record.json"
        return (read_record(path)["result"] if path.is_file() else None) or {}

    def predict(
        self, data: Any = None, *, jacobian: bool = False, ranks: int | None = None, trust_code: bool = False,
        **more: Any,
    ) -> Any:  # fmt: skip
        """Return the predictions for `data`.

        Parameters
        ----------
        data : any kind of data that `mpitrain.train` reads, optional
            Default: the data files of the run. The data may lack the targets.
        jacobian : bool
            Add the derivatives of each target with respect to each input, ``dTARGET_dINPUT``. Not available for
            fields.
        ranks : int, optional
            As for `mpitrain.train`. The predictions do not depend on it.
        trust_code : bool
            Run the code of a network that the run folder names, also if you have not trained it.
        **more
            Settings that differ from those of the run, such as ``**{"domain.pole": "south"}``.

        Returns
        -------
        xarray.Dataset or pandas.DataFrame
            A DataFrame if `data` is a DataFrame. Predictions have the names of the targets, for an ensemble also
            ``NAME_spread``; dimensions, coordinates and units are those of `data`. Values are NaN if there is no
            sample. For files without a grid there is one row for each sample instead.

        Raises
        ------
        UserError
            The data cannot be read or lack a variable, the run has no model, or xarray is not installed.
        mpitrain.errors.LaunchError
            The ranks cannot start or cannot communicate.
        KeyboardInterrupt
            The call was interrupted.

        Notes
        -----
        Collective in a script started by mpirun or srun: all ranks must call it with the same arguments.
        """
        from mpitrain.python.prediction import predict

        return predict(self.path, data, jacobian, ranks, trust_code or self.trust_code, more)

    def export(
        self, output: str | os.PathLike[str], *, format: str | None = None, trust_code: bool = False,
        overwrite: bool = False,
    ) -> Path:  # fmt: skip
        """Write the network for other programs, and compare the written file with the network.

        Parameters
        ----------
        output : path
            The file to write.
        format : {"fortran", "c", "c++", "torchscript", "saber", "mom6", "pumas", "pt2", "onnx"}, optional
            The format, or the user's own function as ``package.module:name``. Default: by the ending of the file name
            (.f90; .c, .h; .hpp; .pt, .pth, .ts; .pt2; .onnx).
        trust_code : bool
            Run the code of a network that the run folder names, also if you have not trained it.
        overwrite : bool
            Replace existing files that were not written by an export.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        UserError
            The format is unknown or cannot express the network, the file must not be replaced or cannot be written, a
            package is missing, or the outputs of the written file differ from those of the network.

        Notes
        -----
        Not collective: call it in one process only. An ensemble is written as one file, which returns the mean and the
        spread of its members.
        """
        from mpitrain.export.command import run_export
        from mpitrain.export.request import ExportRequest
        from mpitrain.python.process import advice_for_python

        path, trusted = Path(output), trust_code or self.trust_code
        request = ExportRequest(self.path, path, trust_code=trusted, format=format or "", overwrite=overwrite)
        with advice_for_python():
            run_export(request, lambda line: None)
        return path

    def checked(self) -> Run:
        """Return the run itself; internal, used by `mpitrain.open`.

        Raises
        ------
        UserError
            The folder does not contain a run.
        """
        if not (self.path / "config.yaml").is_file():
            raise UserError(f"{self.path}: holds no run (no config.yaml); give a run folder")
        return self

    def __repr__(self) -> str:
        """Return text with the folder, the hash and the skill."""
        digits = f", SHA-256 {self.weights_sha256[:12]}" if self.weights_sha256 else ""
        known = {name: one for name, one in self.skill.items() if one["rmse"] is not None}
        skill = "; ".join(f"{name}: RMSE {one['rmse']:.4g}{_unit(one['units'])}" for name, one in known.items())
        return one_line(f"Run({str(self.path)!r}{digits}{'; ' if skill else ''}{skill})")


def _unit(units: str) -> str:
    return "" if units in ("", "1") else f" {units}"

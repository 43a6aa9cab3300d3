"""The commands `predict`, `export` and `report`: flags and handlers. Loads only argparse until one runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpitrain.cli.settings import add_overwrite_flag, add_trust_flag
from mpitrain.errors import one_line

_SETTINGS = "settings that differ from the run's, such as domain.pole=south"


def add_predict_command(commands: Any) -> None:
    """Add `predict` to argparse's subparsers."""
    predict = commands.add_parser(
        "predict",
        help="apply a trained network to data files",
        description="Write the predictions of a trained network, their errors and derivatives to one NetCDF file; "
        "of files without the targets, predictions and derivatives alone. Runs on any number of ranks, with the same "
        "result; files may be larger than memory.",
    )
    predict.add_argument("model", metavar="MODEL", help="run folder, or a model.pt")
    predict.add_argument("settings", nargs="*", metavar="key.path=value", help=_SETTINGS)
    predict.add_argument("--data", nargs="+", metavar="FILE", help="files or patterns (default: the run's own data)")
    predict.add_argument(
        "--output",
        metavar="FILE",
        default="prediction.nc",
        help="file to write, by its ending: .nc, .csv or .parquet (a row a sample), .zarr (default: prediction.nc)",
    )
    predict.add_argument(
        "--jacobian",
        action=argparse.BooleanOptionalAction,
        help="the derivatives by each input (default: yes for points; fields have none)",
    )
    predict.add_argument(
        "--arithmetic",
        choices=("auto", "portable", "torch"),
        default="auto",
        help="portable: the bits of exported sources, on any CPU; auto: that for networks that the compiled engine "
        "trained, torch's for others",
    )
    predict.add_argument(
        "--layout",
        choices=("auto", "data", "grid", "rows"),
        default="auto",
        help="grid: points on the grid of the data; rows: one after the other; data: a grid where the data has one; "
        "auto: the same, but rows for the original C++ program's own network and data, as it writes them",
    )
    predict.add_argument("--maps", metavar="FOLDER", help="also draw maps and a scatter plot as PNG")
    add_overwrite_flag(predict)
    add_trust_flag(predict)
    predict.set_defaults(handler=_run_predict)


def add_export_command(commands: Any) -> None:
    """Add `export` to argparse's subparsers."""
    export = commands.add_parser(
        "export",
        help="write a run's network as source code, or as a file that C++ loads",
        description="Write a run's network for other programs, and check what was written. c, c++ and fortran: source "
        "code without dependencies, with tangent linear, adjoint, Jacobian and a self-test. torchscript: with its "
        "derivatives, names, units and statistics inside, and the C++ program's normalization file next to it. "
        "saber: TorchScript as the TorchBalance blocks of JEDI's SABER load it. mom6, pumas: weights as NetCDF for "
        "MOM6's MOM_ANN and CESM's PUMAS. "
        "pt2: torch.export's format. onnx: for onnxruntime and others. All give an ensemble's mean and spread. "
        "trainer: C++ that trains the network of a settings file, given in the place of FOLDER, in a running model.",
    )
    export.add_argument(
        "runs",
        metavar="FOLDER",
        nargs="+",
        help="folder of a run or an ensemble; of several runs: their mean and spread",
    )
    export.add_argument(
        "--output", metavar="FILE", help="file to write (default: emulator.f90, .c, .hpp, network.nc or model.pt)"
    )
    export.add_argument(
        "--weights", choices=("best", "final"), help="weights to export (default: those of output.weights)"
    )
    export.add_argument(
        "--checkpoint", metavar="latest|best|FOLDER", help="take the weights of this checkpoint (default: latest)"
    )
    export.add_argument(
        "--format",
        metavar="FORMAT",
        default="",
        help="torchscript, saber, mom6, pumas, pt2, onnx, c, c++, fortran, trainer, or a function of your own as "
        "package.module:name (default: what --output ends in, else torchscript)",
    )
    _add_flags_of_formats(export)
    export.add_argument(
        "--build", action="store_true", help="build the C++ program for the check if it is not there (about a minute)"
    )
    add_overwrite_flag(export)
    add_trust_flag(export)
    export.set_defaults(handler=_run_export)


def _add_flags_of_formats(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="DATA_NAME=MODEL_NAME",
        help="with --format saber: what SABER calls a variable of the data (default: its standard_name); repeatable",
    )
    export.add_argument(
        "--mask-variable",
        metavar="NAME",
        default="",
        help="with --format saber: the field that tells which nodes have derivatives; needs --mask-range",
    )
    export.add_argument(
        "--mask-range", metavar="LOW,HIGH", default="", help="with --mask-variable: values that count, such as 0.15,1"
    )
    export.add_argument(
        "--gpu-callable",
        action="store_true",
        help="with --format fortran: what takes one sample may be called in OpenMP's and OpenACC's kernels",
    )
    export.add_argument(
        "--profile",
        metavar="READER",
        default="",
        help="with --format mom6: check the sizes that zanna-bolton (27, 3) or meso-sfn (5 or 45, 2) reads",
    )
    export.add_argument(
        "--collection",
        metavar="FILE",
        help="with --format trainer: the settings of the collection whose samples it keeps, such as collect.yaml",
    )


def add_report_command(commands: Any) -> None:
    """Add `report` to argparse's subparsers."""
    text = "write a run's report.html again, also of a run that is going on or was killed"
    report = commands.add_parser("report", help=text, description=f"{text[0].upper()}{text[1:]}.")
    report.add_argument("run", metavar="RUN_FOLDER", help="folder of the run")
    report.add_argument(
        "--ro-crate",
        action="store_true",
        help="make the folder an RO-Crate instead: write ro-crate-metadata.json from the run's record (needs rocrate)",
    )
    add_trust_flag(report)
    report.set_defaults(handler=_run_report, one_process=True)


def _run_predict(options: argparse.Namespace) -> int:
    from mpitrain.comm import watching_start

    with watching_start(overrides=options.settings) as watch:
        from mpitrain.comm import run_on_all_ranks
        from mpitrain.inference.predict import PredictRequest, predict
    # `--data a.nc b.nc seed=1`: argparse gives the flag all words after it.
    words = options.data or []
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    request = PredictRequest(
        model=Path(options.model),
        overrides=(*options.settings, *settings),
        data=tuple(word for word in words if word not in settings),
        output=Path(options.output),
        jacobian=options.jacobian,
        maps=Path(options.maps) if options.maps else None,
        trust_code=options.trust_code,
        arithmetic=options.arithmetic,
        layout=options.layout,
        overwrite=options.overwrite,
    )
    return run_on_all_ranks(lambda ranks: predict(ranks, request), watch)


def _run_export(options: argparse.Namespace) -> int:
    from mpitrain.export.command import run_export
    from mpitrain.export.request import ExportRequest

    request = ExportRequest(
        run=Path(options.runs[0]),
        members=tuple(map(Path, options.runs[1:])),
        format=options.format,
        output=Path(options.output) if options.output else None,
        weights=options.weights,
        checkpoint=options.checkpoint,
        build=options.build,
        trust_code=options.trust_code,
        names=tuple(options.name),
        mask_variable=options.mask_variable,
        mask_range=options.mask_range,
        collection=Path(options.collection) if options.collection else None,
        overwrite=options.overwrite,
        gpu_callable=options.gpu_callable,
        profile=options.profile,
    )
    run_export(request, _say)
    return 0


def _run_report(options: argparse.Namespace) -> int:
    if options.ro_crate:
        from mpitrain.runs.reproduction.crate import write_crate

        _say(f"RO-Crate: {write_crate(Path(options.run))}")
        return 0
    from mpitrain.inference.report import report

    _say(f"report: {report(Path(options.run), options.trust_code)}")
    return 0


def _say(line: str) -> None:
    print(one_line(line), flush=True)  # noqa: T201

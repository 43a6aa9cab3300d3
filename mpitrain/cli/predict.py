"""The commands `predict`, `export` and `report`: options and handlers. Loads only argparse until one runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpitrain.cli.settings import add_overwrite_flag, add_trust_flag
from mpitrain.errors import one_line

_SETTINGS = "settings that differ from those of the run, such as domain.pole=south"


def add_predict_command(commands: Any) -> None:
    """Add `predict` to argparse's subparsers."""
    predict = commands.add_parser(
        "predict",
        help="apply a trained network to data files",
        description="Write the predictions of a trained network, their errors and derivatives to one NetCDF file. If "
        "the data lack the targets, the errors are left out. The result is the same for any number of ranks; files may "
        "be larger than memory.",
    )
    predict.add_argument("model", metavar="MODEL", help="run folder, or a model.pt")
    predict.add_argument("settings", nargs="*", metavar="key.path=value", help=_SETTINGS)
    predict.add_argument("--data", nargs="+", metavar="FILE", help="files or patterns (default: the run's own data)")
    predict.add_argument(
        "--output",
        metavar="FILE",
        default="prediction.nc",
        help="output file; its ending selects the format: .nc, .csv or .parquet (one row per sample), .zarr (default: "
        "prediction.nc)",
    )
    predict.add_argument(
        "--jacobian",
        action=argparse.BooleanOptionalAction,
        help="write the derivatives with respect to each input (default: yes for points; not available for fields)",
    )
    predict.add_argument(
        "--arithmetic",
        choices=("auto", "portable", "torch"),
        default="auto",
        help="portable: bitwise equal to the exported sources, on any CPU; torch: PyTorch; auto: portable for networks "
        "trained by the compiled engine, torch for others",
    )
    predict.add_argument(
        "--layout",
        choices=("auto", "data", "grid", "rows"),
        default="auto",
        help="grid: points on the grid of the data; rows: one row per point; data: grid if the data have one, "
        "otherwise rows; auto: as data, except for the network and data of the C++ program: rows, as it writes them",
    )
    predict.add_argument(
        "--maps", metavar="FOLDER", help="also draw maps and a scatter plot as PNG files in this folder"
    )
    add_overwrite_flag(predict)
    add_trust_flag(predict)
    predict.set_defaults(handler=_run_predict)


def add_export_command(commands: Any) -> None:
    """Add `export` to argparse's subparsers."""
    export = commands.add_parser(
        "export",
        help="write a run's network as source code, or as a file that C++ loads",
        description="Write a run's network for other programs, and check the written file. c, c++ and fortran: source "
        "code without dependencies, with tangent linear, adjoint, Jacobian and a self-test. torchscript: includes "
        "derivatives, names, units and statistics; the normalization file of the C++ program is written next to it. "
        "saber: TorchScript for the TorchBalance blocks of JEDI's SABER. mom6, pumas: weights as NetCDF for "
        "MOM6's MOM_ANN and CESM's PUMAS. "
        "pt2: the format of torch.export. onnx: for onnxruntime and others. All formats return the mean and spread of "
        "an ensemble. trainer: C++ code that trains the network of a settings file, given instead of FOLDER, in a "
        "running model.",
    )
    export.add_argument(
        "runs",
        metavar="FOLDER",
        nargs="+",
        help="folder of a run or an ensemble; with several runs, their mean and spread are exported",
    )
    export.add_argument(
        "--output", metavar="FILE", help="output file (default: emulator.f90, .c, .hpp, network.nc or model.pt)"
    )
    export.add_argument(
        "--weights", choices=("best", "final"), help="weights to export (default: those of output.weights)"
    )
    export.add_argument(
        "--checkpoint", metavar="latest|best|FOLDER", help="export the weights of this checkpoint (default: latest)"
    )
    export.add_argument(
        "--format",
        metavar="FORMAT",
        default="",
        help="torchscript, saber, mom6, pumas, pt2, onnx, c, c++, fortran, trainer, or a function of your own as "
        "package.module:name (default: by the ending of --output, otherwise torchscript)",
    )
    _add_flags_of_formats(export)
    export.add_argument(
        "--build", action="store_true", help="build the C++ program for the check if it is missing (about a minute)"
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
        help="with --format saber: SABER's name for a variable of the data (default: its standard_name); repeatable",
    )
    export.add_argument(
        "--mask-variable",
        metavar="NAME",
        default="",
        help="with --format saber: the field that masks nodes; requires --mask-range",
    )
    export.add_argument(
        "--mask-range",
        metavar="LOW,HIGH",
        default="",
        help="with --mask-variable: derivatives are 0 at nodes where its value is outside this range, such as 0.15,1",
    )
    export.add_argument(
        "--gpu-callable",
        action="store_true",
        help="with --format fortran: procedures for one sample can be called in OpenMP and OpenACC kernels",
    )
    export.add_argument(
        "--profile",
        metavar="READER",
        default="",
        help="with --format mom6: check that the network has the inputs and outputs that zanna-bolton (27, 3) or "
        "meso-sfn (5 or 45, 2) reads",
    )
    export.add_argument(
        "--collection",
        metavar="FILE",
        help="with --format trainer: settings of the sample collection that it keeps, such as collect.yaml",
    )


def add_report_command(commands: Any) -> None:
    """Add `report` to argparse's subparsers."""
    text = "write a run's report.html again, also for a run that is in progress or was killed"
    report = commands.add_parser("report", help=text, description=f"{text[0].upper()}{text[1:]}.")
    report.add_argument("run", metavar="RUN_FOLDER", help="folder of the run")
    report.add_argument(
        "--ro-crate",
        action="store_true",
        help="make the folder an RO-Crate instead: write ro-crate-metadata.json from the run's record (requires the "
        "package rocrate)",
    )
    add_trust_flag(report)
    report.set_defaults(handler=_run_report, one_process=True)


def _run_predict(options: argparse.Namespace) -> int:
    from mpitrain.comm import watching_start

    with watching_start(overrides=options.settings) as watch:
        from mpitrain.comm import run_on_all_ranks
        from mpitrain.inference.predict import PredictRequest, predict
    # `--data a.nc b.nc seed=1`: argparse assigns all arguments after the option to it.
    arguments = options.data or []
    settings = [argument for argument in arguments if "=" in argument and not Path(argument).exists()]
    request = PredictRequest(
        model=Path(options.model),
        overrides=(*options.settings, *settings),
        data=tuple(argument for argument in arguments if argument not in settings),
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

"""The formats that the package provides."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat, SourceFormat
from mpitrain.export.source.words import FORTRAN_FLAG


class TorchScript(ExportFormat):
    """TorchScript for C++, with derivatives, names, units and statistics inside."""

    output = "model.pt"
    endings = (".pt", ".pth", ".ts")
    writer = "mpitrain.export.network:export"

    type: Literal["torchscript"] = "torchscript"


class Saber(ExportFormat):
    """TorchScript for the TorchBalance blocks of JEDI's SABER."""

    output = "emulator.pt"
    endings = (".pt", ".pth", ".ts")
    is_by_ending = False
    writer = "mpitrain.export.saber:export_saber"

    type: Literal["saber"] = "saber"


class Mom6(ExportFormat):
    """Weights for MOM6's MOM_ANN."""

    output = "network.nc"
    endings = (".nc",)
    is_by_ending = False
    writer = "mpitrain.export.weight_files:export_mom6"

    type: Literal["mom6"] = "mom6"


class Pumas(ExportFormat):
    """Weights for the neural networks of CESM's PUMAS."""

    output = "network.nc"
    endings = (".nc",)
    is_by_ending = False
    writer = "mpitrain.export.weight_files:export_pumas"

    type: Literal["pumas"] = "pumas"


class Pt2(ExportFormat):
    """The format of torch.export."""

    output = "model.pt2"
    endings = (".pt2",)
    writer = "mpitrain.export.programs:export_pt2"

    type: Literal["pt2"] = "pt2"


class Onnx(ExportFormat):
    """ONNX, for onnxruntime and others."""

    output = "model.onnx"
    endings = (".onnx",)
    writer = "mpitrain.export.programs:export_onnx"

    type: Literal["onnx"] = "onnx"


class C(SourceFormat):
    """C."""

    output = "emulator.c"
    source = "mpitrain.export.source.c:c_files"
    endings = (".c", ".h")
    flags = ("-std=c99", "-O2")
    suffix = ".c"

    type: Literal["c"] = "c"


class Cpp(SourceFormat):
    """C++."""

    output = "emulator.hpp"
    source = "mpitrain.export.source.c:cpp_files"
    endings = (".hpp",)
    flags = ("-std=c++17", "-O2")
    suffix = ".cpp"

    type: Literal["c++"] = "c++"


class Trainer(ExportFormat):
    """A trainer that runs inside a model."""

    output = "trainer.cpp"
    writer = "mpitrain.export.trainer.source:write_trainer"
    needs_torch = False
    endings = (".cpp", ".cc", ".cxx")
    is_by_ending = False

    type: Literal["trainer"] = "trainer"


class Fortran(SourceFormat):
    """Fortran."""

    output = "emulator.f90"
    source = "mpitrain.export.source.fortran:fortran_files"
    endings = (".f90",)
    flags = ("-O2", FORTRAN_FLAG)
    suffix = ".f90"

    type: Literal["fortran"] = "fortran"

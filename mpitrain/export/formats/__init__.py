"""Formats of `mpitrain export`: one file each, named in this table alone."""

DEFAULT = "torchscript"
TABLE = {
    "torchscript": "mpitrain.export.formats.torchscript:TorchScript",
    "saber": "mpitrain.export.formats.saber:Saber",
    "pt2": "mpitrain.export.formats.pt2:Pt2",
    "onnx": "mpitrain.export.formats.onnx:Onnx",
    "c": "mpitrain.export.formats.c:C",
    "c++": "mpitrain.export.formats.cpp:Cpp",
    "trainer": "mpitrain.export.formats.trainer:Trainer",
    "fortran": "mpitrain.export.formats.fortran:Fortran",
}
CODE = "mpitrain.export.formats.code:CodeExport"

"""Table of the formats of `mpitrain export`, the only place that lists them."""

DEFAULT = "torchscript"
TABLE = {
    "torchscript": "mpitrain.export.formats.built_in:TorchScript",
    "saber": "mpitrain.export.formats.built_in:Saber",
    "mom6": "mpitrain.export.formats.built_in:Mom6",
    "pumas": "mpitrain.export.formats.built_in:Pumas",
    "pt2": "mpitrain.export.formats.built_in:Pt2",
    "onnx": "mpitrain.export.formats.built_in:Onnx",
    "c": "mpitrain.export.formats.built_in:C",
    "c++": "mpitrain.export.formats.built_in:Cpp",
    "trainer": "mpitrain.export.formats.built_in:Trainer",
    "fortran": "mpitrain.export.formats.built_in:Fortran",
}
CODE = "mpitrain.export.formats.code:CodeExport"

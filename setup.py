"""The packages of mpitrain; all else that describes it is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

setup(
    # Folders of sources and texts are packages too. The C++ program's sources travel along, for `mpitrain verify` to
    # build them where mpitrain is installed.
    packages=[
        *find_namespace_packages(include=["mpitrain", "mpitrain.*"], exclude=["*.__pycache__"]),
        "mpitrain.cpp_reference",
    ],
    package_dir={"mpitrain.cpp_reference": "cpp_reference"},
)

"""Train networks on scientific data under MPI, with results equal to a C++ MPI program's.

These are the public Python functions, described by `mpitrain help python`. Importing the package loads neither torch
nor MPI nor numpy.

    run = mpitrain.train(dataset, inputs=["sst", "u10"], targets=["flux"], epochs=20, output="run")
    run.metrics, run.skill, run.report
    mpitrain.open("run").predict(dataset)
    mpitrain.open("run").export("emulator.f90")
"""

import sys
import types
from typing import Any

from mpitrain.errors import ConfigError, UserError
from mpitrain.python.interface import ensemble, load_config, open, predict, train
from mpitrain.python.run import Run
from mpitrain.version import __version__

__all__ = [
    "ConfigError",  # wrong settings, or names that the data do not contain
    "Run",  # a run folder: metrics, skill, report, predict(), export()
    "UserError",  # base class of all errors caused by the user's input, ConfigError included
    "__version__",
    "ensemble",  # train many networks
    "load_config",  # check settings without training
    "open",  # open the run in a folder
    "predict",  # apply a run to data
    "train",  # train one network
]

_FUNCTIONS = {"train": train, "ensemble": ensemble}


class _CallableModule(types.ModuleType):
    """A subpackage that has the same name as a public function: calling the module calls the function."""

    __signature__: Any  # the function's signature, for inspect and for help in a notebook

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _FUNCTIONS[self.__name__.rpartition(".")[2]](*arguments, **named)


class _Package(types.ModuleType):
    """The package itself: keeps `mpitrain.train` callable after an import replaces it by the module of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FUNCTIONS and isinstance(value, types.ModuleType):
            import inspect

            value.__class__ = _CallableModule
            value.__doc__ = _FUNCTIONS[name].__doc__
            value.__dict__["__signature__"] = inspect.signature(_FUNCTIONS[name])
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""Train networks on scientific data under MPI, with results equal to a C++ MPI program's.

The public functions for Python; `mpitrain help python` describes them. Importing loads neither torch nor MPI nor numpy.

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
    "ConfigError",  # wrong settings, or names that the data does not have
    "Run",  # a run folder: metrics, skill, report, predict(), export()
    "UserError",  # everything that the user's input can cause; ConfigError is one of its kinds
    "__version__",
    "ensemble",  # train many networks
    "load_config",  # check settings without training
    "open",  # the run in a folder
    "predict",  # apply a run to data
    "train",  # train one network
]

_FUNCTIONS = {"train": train, "ensemble": ensemble}


class _Room(types.ModuleType):
    """A folder of the package with the name of a public function: calling it calls the function."""

    __signature__: Any  # the function's, for inspect and for the help of a notebook

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _FUNCTIONS[self.__name__.rpartition(".")[2]](*arguments, **named)


class _Package(types.ModuleType):
    """The package itself: once `mpitrain.train.trainer` is imported, `mpitrain.train` is a module, and still called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FUNCTIONS and isinstance(value, types.ModuleType):
            import inspect

            value.__class__ = _Room
            value.__doc__ = _FUNCTIONS[name].__doc__
            value.__dict__["__signature__"] = inspect.signature(_FUNCTIONS[name])
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""A network that Python gives as an object: pickled into the run folder, where ranks and later commands find it."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpitrain.durable_files import write_durably
from mpitrain.errors import UserError, writing
from mpitrain.python.handover import is_rank

_NAME = f"{__name__}:network"


def is_network(value: Any) -> bool:
    """Tell whether a value is one of torch's modules. Does not load torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def network(num_inputs: int, num_outputs: int, *, file: str, sha256: str, structure: str) -> Any:
    """Return the network in `file`, whose content must have that hash; its sizes are its own.

    Its class must be importable, unless cloudpickle has written it. Raises ValueError, and whatever unpickling does.
    """
    content = Path(file).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{file} has changed")
    return pickle.loads(content)  # noqa: S301  # named code is run where it is trusted


@contextmanager
def kept_network(model: Any, folder: Path, resume: bool) -> Iterator[list[str]]:
    """Yield the settings for a module, which is kept in the run folder; a block that fails before its run leaves none.

    With `resume` the run's own, if it has the same structure: a checkpoint has its weights. Where this process is one
    of several ranks the root's module counts; collective then. Raises UserError for what cannot be pickled.
    """
    structure = str(model) + repr([(name, tuple(one.shape)) for name, one in model.state_dict().items()])
    options = {"structure": hashlib.sha256(structure.encode()).hexdigest()}

    def keep() -> dict[str, str]:
        recorded = _options_in(folder) if resume else {}
        return recorded if options.items() <= recorded.items() else options | _write(model, folder)

    if is_rank():
        from mpitrain.python.together import on_root

        options = on_root(keep)
    else:
        options = keep()
    try:
        yield [f"model.name={_NAME}", f"model.options={json.dumps(options)}"]
    except BaseException:
        if not (folder / "config.yaml").exists():
            with suppress(OSError):
                Path(options["file"]).unlink()
                folder.rmdir()
        raise


def _options_in(folder: Path) -> dict[str, str]:
    from mpitrain.config import load_run_config

    path = folder / "config.yaml"
    found = load_run_config(path).config.model if path.is_file() else None
    return dict(found.options) if found is not None and found.name == _NAME else {}


def _write(model: Any, folder: Path) -> dict[str, str]:
    content = _pickled(model)
    sha256 = hashlib.sha256(content).hexdigest()
    path = folder / f"network-{sha256[:12]}.pkl"
    with writing(path, "check the folder's permissions and space"):
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)
    return {"file": str(path), "sha256": sha256}


def _pickled(model: Any) -> bytes:
    """Return a module pickled, by cloudpickle where that is installed: with the code of the caller's own classes."""
    try:
        import cloudpickle
    except ImportError:
        own = next((type(one).__name__ for one in model.modules() if type(one).__module__ == "__main__"), None)
        if own is not None:
            raise UserError(
                f"model: {own} is a class of this session, which other processes cannot import; put it into a file "
                "beside this one and import it from there, or: python -m pip install cloudpickle"
            ) from None
        cloudpickle = pickle
    try:
        content: bytes = cloudpickle.dumps(copy.deepcopy(model).cpu())
    except Exception as error:
        raise UserError(f"model: cannot be pickled ({error}); give its class, as model.name=module:class") from error
    return content

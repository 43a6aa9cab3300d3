"""Claims on run folders, so that one launch at a time uses a folder, on file systems with and without locks.

A file `.claim-000003.json` in the folder describes a launch: host, process, job, and `run`, its identity. The claim
with the highest number is valid. A launch claims the folder by creating the file of the next number, which only one
process can do. It may if there is no claim, or if the launch of the valid one has ended: its process no longer exists,
it was an earlier start of this job, or, if this process cannot find out, the user says so with `takes_over`. A launch
that ends removes its claim.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpitrain.comm import Ranks
from mpitrain.errors import OutputError, reason_of
from mpitrain.train.folder.launch import Launch, describe_launch, read_launch
from mpitrain.train.folder.made_here import MadeHere
from mpitrain.train.run_folder import RunFolder

_NAME = re.compile(r"\.claim-([0-9]{6}|[1-9][0-9]{6,})\.json")  # each number has a single name
_NUM_TRIES = 10
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True)
class ClaimedFolder(RunFolder):
    """A run folder that this launch has claimed.

    Attributes
    ----------
    path, model_file : Path, str
        See `RunFolder`.
    number : int
        The number of this launch's claim; the claim with the highest number is valid.
    run : str
        The identity of the launch in its checkpoints, model and record: 16 hexadecimal digits.
    """

    number: int = 0
    run: str = ""

    @property
    def claim(self) -> Path:
        """The claim file of this launch."""
        return _path(self.path, self.number)

    def check_claim(self) -> None:
        """Raise OutputError if another launch has taken over the folder; call it before writing.

        Raises
        ------
        OutputError
            There is a claim with a higher number, or one of another launch. Raised on this rank only.

        Notes
        -----
        Not collective: called on the root.
        """
        found = _newest(self.path)
        if found is not None and (found.number > self.number or (found.launch and found.launch.run != self.run)):
            raise OutputError(
                f"{self.path}: taken over by {found.description}, which regarded this run as ended; this run writes "
                "nothing more here"
            )


@contextmanager
def claimed(ranks: Ranks, folder: RunFolder, takes_over: bool = False) -> Iterator[ClaimedFolder]:
    """Claim `folder` for this launch during the block. Collective.

    With `takes_over`, a claim of another launch is overridden if this process cannot find out whether that launch has
    ended. After the block the claim is removed, and so are folders that were created for it and are empty. Raises
    OutputError, on all ranks, with host and process of the launch that uses the folder.
    """
    made = MadeHere()
    claim = ClaimedFolder(folder.path, folder.model_file, *ranks.on_root(lambda: _begin(folder, made, takes_over)))
    try:
        yield claim
    finally:
        if ranks.is_root:
            release(claim)
            made.take_back()


def _begin(folder: RunFolder, made: MadeHere, takes_over: bool = False) -> tuple[int, str]:
    path = folder.path
    try:
        claim = _claim_made(folder, made, takes_over)
    except OSError as error:
        made.take_back()
        raise OutputError(f"{path}: cannot be written ({reason_of(error)}); choose another output.model_dir") from error
    except OutputError:
        made.take_back()
        raise
    return claim.number, claim.run


def _claim_made(folder: RunFolder, made: MadeHere, takes_over: bool) -> ClaimedFolder:
    """Create the folder and claim it; try again if another launch, which was refused, has just removed the folder."""
    for _ in range(_NUM_TRIES):
        with contextlib.suppress(FileNotFoundError):
            made.make_folder(folder.path)
            return _outside_of_ensembles(claim_folder(folder, takes_over), takes_over)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _outside_of_ensembles(claim: ClaimedFolder, takes_over: bool) -> ClaimedFolder:
    """Return the claim. Raises OutputError if its folder is a member of an ensemble that another launch uses.

    Called after the claim is made: launches of ensembles check the members' claims likewise, so one of the two sees the
    other.
    """
    try:
        if claim.path.parent.name == "members":
            refuse_if_used(claim.path.parent.parent, takes_over)
    except OutputError:
        release(claim)
        raise
    return claim


def claim_folder(folder: RunFolder, takes_over: bool = False, launch: Launch | None = None) -> ClaimedFolder:
    """Claim `folder`, which exists, for `launch` or this process. Raises OSError, and OutputError if it is in use.

    With `takes_over`, claim it also if this process cannot find out whether the launch that uses it has ended.
    """
    path = folder.path
    launch = launch or describe_launch(path, os.environ)
    candidate = path / f".claim-{launch.run}.partial"
    try:
        with candidate.open("xb") as file:
            file.write(launch.to_json())
        while True:
            before = _newest(path)
            if before is not None:
                _refuse_unless_over(path, before, launch, takes_over)
            number = 1 if before is None else before.number + 1
            if _create(candidate, _path(path, number)) and _follows(path, before, number):
                return ClaimedFolder(path, folder.model_file, number, launch.run)
    finally:
        candidate.unlink(missing_ok=True)


def release(claim: ClaimedFolder) -> None:
    """Remove the claim, and then the claims of earlier launches."""
    launch = read_launch(claim.claim)
    if launch is None or launch.run != claim.run:
        return
    for number in sorted(_numbers(claim.path), reverse=True):
        if number <= claim.number:
            with contextlib.suppress(OSError):  # it belongs to another user, or is not a file
                _path(claim.path, number).unlink()


def refuse_if_used(folder: Path, takes_over: bool = False) -> None:
    """Raise OutputError if a launch that has not ended has claimed `folder`. Writes nothing there."""
    try:
        found = _newest(folder)
    except OSError:  # writing to the folder will raise the error
        return
    if found is not None:
        _refuse_unless_over(folder, found, describe_launch(folder, os.environ), takes_over)


@dataclass(frozen=True)
class _Found:
    """The valid claim on a folder; `launch` is None if its file cannot be read."""

    number: int
    launch: Launch | None

    @property
    def description(self) -> str:
        return f"another run (.claim-{self.number:06d}.json)" if self.launch is None else self.launch.description


def _refuse_unless_over(folder: Path, found: _Found, launch: Launch, takes_over: bool) -> None:
    """Raise OutputError unless the launch `found` has ended, as `launch` sees it; if unknown, unless `takes_over`."""
    is_over = found.launch and found.launch.is_over(launch)
    if is_over is False or (is_over is None and not takes_over):
        by_hand = "" if is_over is False else "; if it has ended, add --take-over"
        raise OutputError(
            f"{folder}: in use by {found.description}; wait for its end, stop it, or choose another "
            f"output.model_dir{by_hand}"
        )


def _newest(folder: Path) -> _Found | None:
    while numbers := _numbers(folder):
        path = _path(folder, max(numbers))
        launch = read_launch(path)
        if os.path.lexists(path):  # otherwise it has been released meanwhile
            return _Found(max(numbers), launch)
    return None


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def _path(folder: Path, number: int) -> Path:
    return folder / f".claim-{number:06d}.json"


def _create(candidate: Path, path: Path) -> bool:
    """Create `path` with the content of `candidate` atomically; return False if it exists. Raises OSError."""
    try:
        os.link(candidate, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_by_writing(candidate, path)
    return True


def _create_by_writing(candidate: Path, path: Path) -> bool:
    try:
        with path.open("xb") as file:
            file.write(candidate.read_bytes())
    except FileExistsError:
        return False
    return True


def _follows(folder: Path, before: _Found | None, number: int) -> bool:
    """Return whether claim `number`, just created, follows the claim `before`; otherwise remove it.

    Other launches may have claimed and released the folder since `before` was read, and have used the same number.
    """
    present = None if before is None else read_launch(_path(folder, before.number))
    expected = None if before is None else before.launch
    is_same = (present and present.run) == (expected and expected.run)
    if is_same and max(_numbers(folder)) == number:
        return True
    _path(folder, number).unlink(missing_ok=True)
    return False

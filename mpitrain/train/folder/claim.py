"""A run folder belongs to one launch at a time, on file systems with and without locks.

`.claim-000003.json` in the folder names a launch: host, process, job, and `run`, its identity. The highest number
counts. A launch claims the folder by creating the next number, which only one process can, where there is none or the
launch of the highest number is over: its process is gone, it was an earlier start of this job, or it has missed
`NUM_MISSED` heartbeats. A launch that ends removes its claim. A heartbeat sets the time of the file. It is compared
with the time of a file that is written next to it: both times are the file system's own, whatever the hosts' clocks
are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpitrain.comm.ranks import Ranks
from mpitrain.errors import OutputError, reason_of
from mpitrain.train.folder.launch import Launch, describe_launch, read_launch
from mpitrain.train.folder.made_here import MadeHere
from mpitrain.train.run_folder import RunFolder

HEARTBEAT_S, NUM_MISSED = 10.0, 6
_NAME = re.compile(r"\.claim-(\d{6,18})\.json")
_LOOKS_A_HEARTBEAT, _NUM_TRIES = 20, 10
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True)
class ClaimedFolder(RunFolder):
    """A run folder that this launch has claimed. `run` is the identity in its checkpoints, model and record."""

    number: int = 0
    run: str = ""

    @property
    def claim(self) -> Path:
        """The file that names the launch."""
        return _path(self.path, self.number)

    def check_claim(self) -> None:
        """Raise OutputError where another launch has the folder now. Not collective; before anything is written."""
        found = _newest(self.path)
        if found is not None and self._is_anothers(found):
            raise OutputError(
                f"{self.path}: taken over by {found.words}, for this run gave no sign of life for "
                f"{NUM_MISSED * HEARTBEAT_S:.0f} s; it writes nothing more here"
            )

    def _is_anothers(self, found: _Found) -> bool:
        return found.number > self.number or (found.launch is not None and found.launch.run != self.run)


@contextmanager
def claimed(ranks: Ranks, folder: RunFolder) -> Iterator[ClaimedFolder]:
    """Let this launch be the only one that uses `folder` during the block. Collective.

    After the block no claim is left, nor a folder that was made for it alone. Raises OutputError, on all ranks, naming
    host and process of the launch that uses the folder.
    """
    made = MadeHere()
    claim = ClaimedFolder(folder.path, folder.model_file, *ranks.on_root(lambda: _begin(folder, made)))
    if not ranks.is_root:
        yield claim
        return
    try:
        with heartbeats(claim):
            yield claim
    finally:
        release(claim)
        made.take_back()


def _begin(folder: RunFolder, made: MadeHere) -> tuple[int, str]:
    path = folder.path
    try:
        claim = _claim_made(folder, made)
    except OSError as error:
        made.take_back()
        raise OutputError(f"{path}: cannot be written ({reason_of(error)}); choose another output.model_dir") from error
    except OutputError:
        made.take_back()
        raise
    return claim.number, claim.run


def _claim_made(folder: RunFolder, made: MadeHere) -> ClaimedFolder:
    """Make the folder and claim it, once more where another launch, which was refused, has just taken it back."""
    for _ in range(_NUM_TRIES):
        with contextlib.suppress(FileNotFoundError):
            made.make_folder(folder.path)
            return _outside_of_ensembles(claim_folder(folder))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _outside_of_ensembles(claim: ClaimedFolder) -> ClaimedFolder:
    """Return the claim. Raises OutputError where it is on a member of an ensemble that is in use, which looks too."""
    try:
        if claim.path.parent.name == "members":
            refuse_if_used(claim.path.parent.parent)
    except OutputError:
        release(claim)
        raise
    return claim


def claim_folder(folder: RunFolder, launch: Launch | None = None, heartbeat_s: float = HEARTBEAT_S) -> ClaimedFolder:
    """Claim `folder`, which exists, for `launch`, or for this process. Raises OSError, OutputError where it is in use.

    Where only time can tell whether a launch is over, it waits: until that one is renewed, or is over.
    """
    path = folder.path
    launch = launch or describe_launch(path, os.environ)
    candidate = path / f".claim-{launch.run}.partial"
    try:
        with candidate.open("xb") as file:
            file.write(launch.to_json())
        patience = _Patience(launch, candidate, heartbeat_s)
        while True:
            before = _newest(path)
            if before is not None and not patience.is_over(before):
                continue
            number = 1 if before is None else before.number + 1
            if _create(candidate, _path(path, number)) and _follows(path, before, number):
                return ClaimedFolder(path, folder.model_file, number, launch.run)
    finally:
        candidate.unlink(missing_ok=True)


def release(claim: ClaimedFolder) -> None:
    """Remove the claim, and then those of launches that it followed."""
    launch = read_launch(claim.claim)
    if launch is None or launch.run != claim.run:
        return
    for number in sorted(_numbers(claim.path), reverse=True):
        if number <= claim.number:
            with contextlib.suppress(OSError):  # another user's, or no file
                _path(claim.path, number).unlink()


def refuse_if_used(folder: Path) -> None:
    """Raise OutputError where a launch that is not over has claimed `folder`, in which nothing is written."""
    try:
        found = _newest(folder)
    except OSError:  # whoever writes there says why it cannot
        return
    if found is None:
        return
    verdict = found.launch and found.launch.is_over(describe_launch(folder, os.environ))
    if verdict is None:
        verdict = time.time() - found.renewed_ns / 1e9 > NUM_MISSED * HEARTBEAT_S
    if not verdict:
        raise OutputError(_in_use(folder, found))


@contextmanager
def heartbeats(claim: ClaimedFolder, heartbeat_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Renew the claim again and again during the block, from a thread."""
    is_ended = threading.Event()

    def renew() -> None:
        while not is_ended.wait(heartbeat_s):
            with contextlib.suppress(OSError):  # `check_claim` finds what it means
                os.utime(claim.claim, follow_symlinks=False)

    thread = threading.Thread(target=renew, name="mpitrain claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_ended.set()
        thread.join()


@dataclass(frozen=True)
class _Found:
    """The valid claim on a folder; `launch` is None where its file cannot be read."""

    number: int
    launch: Launch | None
    renewed_ns: int

    @property
    def words(self) -> str:
        return f"another run (.claim-{self.number:06d}.json)" if self.launch is None else self.launch.words


class _Patience:
    """Decides whether a launch is over, and waits for a sign of life where only time can tell."""

    def __init__(self, launch: Launch, candidate: Path, heartbeat_s: float) -> None:
        self._launch, self._candidate, self._heartbeat_s = launch, candidate, heartbeat_s
        self._first: _Found | None = None
        self._since_s = 0.0

    def is_over(self, found: _Found) -> bool:
        """Return True for a launch that is over, False to look again. Raises OutputError for one that is not."""
        verdict = found.launch and found.launch.is_over(self._launch)
        if verdict is None:
            verdict = self._verdict_of_time(found)
        if verdict is False:
            raise OutputError(_in_use(self._candidate.parent, found))
        if verdict is None:
            time.sleep(self._heartbeat_s / _LOOKS_A_HEARTBEAT)
        return verdict is True

    def _verdict_of_time(self, found: _Found) -> bool | None:
        if self._first is None or self._first.number != found.number:
            self._first, self._since_s = found, time.monotonic()
        if self._first.renewed_ns != found.renewed_ns:
            return False
        os.utime(self._candidate)
        age_s = (self._candidate.stat().st_mtime_ns - found.renewed_ns) / 1e9
        # The wait counts for itself: the file's time may lie in the future.
        silent_s = max(age_s, time.monotonic() - self._since_s)
        return True if silent_s > NUM_MISSED * self._heartbeat_s else None


def _in_use(folder: Path, found: _Found) -> str:
    return f"{folder}: in use by {found.words}; wait for its end, stop it, or choose another output.model_dir"


def _newest(folder: Path) -> _Found | None:
    while numbers := _numbers(folder):
        path = _path(folder, max(numbers))
        launch = read_launch(path)  # opening it makes a network file system ask for its time
        with contextlib.suppress(FileNotFoundError):
            return _Found(max(numbers), launch, path.lstat().st_mtime_ns)
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
    """Create `path` with the content of the candidate, at once; return False where it exists. Raises OSError."""
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
    """Tell whether claim `number`, just created, follows the one that was judged; if not, take it back.

    Since then others may have claimed the folder, and left without a claim: the number may then have been given twice.
    """
    judged = None if before is None else read_launch(_path(folder, before.number))
    expected = None if before is None else before.launch
    is_same = (judged and judged.run) == (expected and expected.run)
    if is_same and max(_numbers(folder)) == number:
        return True
    _path(folder, number).unlink(missing_ok=True)
    return False

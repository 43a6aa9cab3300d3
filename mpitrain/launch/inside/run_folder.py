"""The run folder of a job, and how a restarted job goes on in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.durable_files import write_whole
from mpitrain.json_text import read_regular_file
from mpitrain.launch.grammar import PATH
from mpitrain.launch.inside.place import Place, checked
from mpitrain.launch.job_request import JobRequest


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training or an ensemble.

    Its file `job_id` tells an earlier attempt of this job, which may be replaced where it has no checkpoint yet, from
    a run of another job, which the training refuses to touch.
    """

    path: Path
    job: str | None
    """The job's name; None where no process decides for all hosts."""
    is_ensemble: bool
    resumes: bool
    """Whether the user asked to go on in it."""

    @classmethod
    def of(cls, job: JobRequest, place: Place, environ: Mapping[str, str], is_claimed: bool = True) -> RunFolder:
        """Return the folder: OUTPUT, the request's, or one named after the job. Raises UserError."""
        named = checked(environ, "OUTPUT", PATH) if environ.get("OUTPUT") else job.run_folder
        name = named or f"mpitrain_{job.folder_word}-{place.name}"
        if place.index is not None and named:  # the default name has the index already
            name = f"{name}-{place.index}"
        return cls(
            Path(name), place.name if is_claimed else None, job.command == "ensemble", environ.get("RESUME") == "1"
        )

    @property
    def has_begun(self) -> bool:
        """Whether something is there that can be gone on with."""
        if self.is_ensemble:
            return (self.path / "config.yaml").exists()
        return any(self.path.glob("checkpoints/*/commit.json"))

    def words_to_go_on(self) -> list[str]:
        """Return what the next start adds to its command."""
        if not self._is_of_this_job():
            return ["--resume"] if self.resumes else []
        # What this job has started before is over, which the next one's host may not be able to tell.
        return ["--resume" if self.resumes or self.has_begun else "--overwrite", "--take-over"]

    def claim(self) -> None:
        """Write this job's name into the folder, unless it holds the run of another job. Raises OSError."""
        is_used = any((self.path / name).exists() for name in ("config.yaml", "checkpoints"))
        if self.job is not None and (self.resumes or not is_used):
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "job_id", f"{self.job}\n".encode())  # in the place of a link, not where it leads

    def _is_of_this_job(self) -> bool:
        try:
            return read_regular_file(self.path / "job_id").decode().strip() == self.job
        except (OSError, ValueError):
            return False

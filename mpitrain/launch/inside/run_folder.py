"""The run folder of a job, and how a restarted job resumes in it."""

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
    """The run folder of a training or an ensemble.

    Its file `job_id` distinguishes an earlier start of this job, which may be replaced if it has no checkpoint yet,
    from a run of another job, which training refuses to overwrite.
    """

    path: Path
    job: str | None
    """The job's name; None if no process decides for all hosts."""
    is_ensemble: bool
    resumes: bool
    """Whether the user asked to resume in it (RESUME=1)."""

    @classmethod
    def of(cls, job: JobRequest, place: Place, environ: Mapping[str, str], is_claimed: bool = True) -> RunFolder:
        """Return the folder: $OUTPUT, otherwise the request's, otherwise one named after the job. Raises UserError."""
        named = checked(environ, "OUTPUT", PATH) if environ.get("OUTPUT") else job.run_folder
        name = named or f"mpitrain_{job.folder_kind}-{place.name}"
        if place.index is not None and named:  # the default name contains the index already
            name = f"{name}-{place.index}"
        return cls(
            Path(name), place.name if is_claimed else None, job.command == "ensemble", environ.get("RESUME") == "1"
        )

    @property
    def has_begun(self) -> bool:
        """Whether the folder contains a run that can be resumed."""
        if self.is_ensemble:
            return (self.path / "config.yaml").exists()
        return any(self.path.glob("checkpoints/*/commit.json"))

    def resume_options(self) -> list[str]:
        """Return the options that the next start adds to its command."""
        if not self._is_of_this_job():
            return ["--resume"] if self.resumes else []
        # --take-over: earlier starts of this job have ended, which a process on another host may be unable to detect.
        return ["--resume" if self.resumes or self.has_begun else "--overwrite", "--take-over"]

    def claim(self) -> None:
        """Write this job's name into the folder, unless it contains the run of another job. Raises OSError."""
        is_used = any((self.path / name).exists() for name in ("config.yaml", "checkpoints"))
        if self.job is not None and (self.resumes or not is_used):
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "job_id", f"{self.job}\n".encode())  # replaces a link, does not follow it

    def _is_of_this_job(self) -> bool:
        try:
            return read_regular_file(self.path / "job_id").decode().strip() == self.job
        except (OSError, ValueError):
            return False

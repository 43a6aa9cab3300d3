"""A real Slurm of two nodes on this one machine: own configuration, ports, key and state in a temporary folder."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from conftest import Finished, launcher_environment

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "squeue")
INSTALL = "apt-get install -y slurm-wlm munge libpmix-dev iproute2"
NUM_NODES = 2
CPUS_PER_NODE = 4
# Debian keeps the daemons here, which is not on every PATH.
SYSTEM_PATH = "/usr/sbin:/sbin"
# Over UCX, MPICH publishes 4096 bytes of its heap as its address, some lines of which grow beyond the 1024 bytes that
# Slurm's PMI2 reads of a line: the ranks then never meet. An address of libfabric is short.
SHORT_ADDRESSES = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
# MPICH names its files in shared memory after job and step, and refuses to start where another cluster's are left.
FIRST_JOBS = 1_000_000
_CLUSTER: pytest.StashKey[SlurmCluster] = pytest.StashKey()

CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
TmpFS={folder}/tmp-%n
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=100000,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=30
InactiveLimit=0
SlurmdTimeout=300
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=n[1-2] Default=YES MaxTime=10 OverSubscribe=YES:4 State=UP
"""


class SlurmCluster:
    """The running daemons, and the commands that talk to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._of_nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a login node of this cluster."""
        inherited = {name: value for name, value in launcher_environment().items() if not name.startswith("SLURM_")}
        path = f"{os.environ['PATH']}:{SYSTEM_PATH}"
        return {**inherited, **SHORT_ADDRESSES, "SLURM_CONF": str(self.configuration), "PATH": path}

    def run(
        self, command: Sequence[str], *, cwd: Path | None = None, timeout_s: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> Finished:  # fmt: skip
        """Run a command on the login node and wait for its end; a job that outlives it fails the test."""
        done = subprocess.run(
            command, cwd=cwd, env={**self.environment, **(environ or {})}, capture_output=True, text=True,
            timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)

    def srun(
        self, *words: str, cwd: Path | None = None, timeout_s: float = 60.0, environ: Mapping[str, str] | None = None
    ) -> Finished:  # fmt: skip
        """Run `srun WORDS`; Slurm itself ends it after three minutes."""
        return self.run(["srun", "--time=3", *words], cwd=cwd, timeout_s=timeout_s, environ=environ)

    def submit(self, script: Path, *words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> int:
        """Send a job script, and give the job's number."""
        sent = self.run(["sbatch", "--parsable", *words, str(script)], cwd=cwd, environ=environ)
        assert sent.returncode == 0, sent.stderr
        return int(sent.stdout)

    def show_job(self, job: int) -> dict[str, str]:
        """All that Slurm knows of a job, such as JobState, ExitCode and Restarts."""
        shown = self.run(["scontrol", "--oneliner", "show", "job", str(job)])
        assert shown.returncode == 0, shown.stderr
        return dict(word.split("=", 1) for word in shown.stdout.split() if "=" in word)

    def wait_for_end(self, job: int, timeout_s: float = 60.0) -> dict[str, str]:
        """Wait until a job has ended for good; give what Slurm knows of it."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        wait_until(lambda: self.show_job(job)["JobState"] in ended, timeout_s, f"the end of job {job}")
        return self.show_job(job)

    def start(self) -> None:
        """Start munge, the controller and a daemon for each node; wait until both nodes are idle."""
        self._start_munge()
        host = socket.gethostname()
        control_port, *node_ports = _free_ports(1 + NUM_NODES)
        self.configuration.write_text(CONFIGURATION.format(
            name=f"tests{os.getpid()}", host=host, control_port=control_port, folder=self.folder,
            first_job=1 + secrets.randbelow(FIRST_JOBS),
            node_ports=",".join(map(str, node_ports)), cpus=CPUS_PER_NODE,
        ))  # fmt: skip
        # Without a cgroup plugin: containers seldom let one make cgroups, and linuxproc tracks the processes.
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "state").mkdir()
        self._start("slurmctld", "-D", "-f", str(self.configuration))
        for node in range(1, NUM_NODES + 1):
            for name in (f"spool-n{node}", f"tmp-n{node}"):  # two nodes of one machine must not share /tmp for PMIx
                (self.folder / name).mkdir()
            self._start_node(f"n{node}")
        wait_until(self._is_idle, 30.0, f"two idle nodes; the daemons' words are in {self.folder}")

    @contextmanager
    def lost_node(self, name: str) -> Iterator[None]:
        """Kill every process of a node, as a power cut does, and let the controller know; the node comes back after."""
        daemon = self._of_nodes[name]
        killed = {daemon.pid, *_processes_of_node(name)}
        # Stopped first: srun, alive for a moment after the others, would end its step on the other node.
        for signal_sent, pid in itertools.product((signal.SIGSTOP, signal.SIGKILL), killed):
            with suppress(ProcessLookupError):
                os.kill(pid, signal_sent)
        daemon.wait()
        # What the controller finds out by itself after SlurmdTimeout.
        self.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost"])
        try:
            yield
        finally:
            self._daemons.remove(daemon)
            self._start_node(name)
            self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            wait_until(self._is_idle, 60.0, "the node's return")

    def stop(self) -> None:
        """End all jobs and daemons; nothing is left behind."""
        if self.configuration.exists():
            self.run(["scancel", "--signal=KILL", "--user=root"])
            self.run(["scancel", "--user=root"])
            wait_until(lambda: not self.run(["squeue", "--noheader"]).stdout.strip(), 20.0, "the end of all jobs")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for path in (munge, key):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self._start("munged", "--foreground", *options, user="munge")
        wait_until((munge / "socket").exists, 10.0, "munge's socket")

    def _start_node(self, name: str) -> None:
        self._start("slurmd", "-D", "-N", name, "-f", str(self.configuration))
        self._of_nodes[name] = self._daemons[-1]

    def _start(self, program: str, *options: str, user: str | None = None) -> None:
        with (self.folder / f"daemon-{len(self._daemons)}-{program}.txt").open("wb") as output:
            self._daemons.append(subprocess.Popen(
                [_find(program), *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=self.environment, user=user, group=user, cwd="/",
            ))  # fmt: skip

    def _is_idle(self) -> bool:
        states = self.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()
        return states == ["idle"] * NUM_NODES


def _processes_of_node(name: str) -> list[int]:
    """The step daemons of a node, and the ranks that they started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            of_node = f"SLURMD_NODENAME={name}".encode() in (path / "environ").read_bytes().split(b"\0")
            # A step's daemon shows its job and step, not its node; it dies with the tasks that it has started.
            if of_node:
                found += [int(path.name), *([parent] if (parent := _step_daemon_of(path)) else [])]
        except OSError:
            continue
    return found


def _step_daemon_of(path: Path) -> int | None:
    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return parent if "slurmstepd" in Path(f"/proc/{parent}/comm").read_text() else None


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until `condition` holds; fail the test after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def slurm(request: pytest.FixtureRequest) -> SlurmCluster:
    """The running cluster, one for all test files."""
    # Not in a conftest.py of this folder, which would hide the one above; a file that imports this gets its own
    # fixture, so the cluster itself is kept with the run.
    stash = request.config.stash
    if _CLUSTER not in stash:
        _skip_where_impossible()
        with ExitStack() as undo:
            cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="mpitrain-slurm-")))
            undo.callback(cluster.stop)
            cluster.folder.chmod(0o755)  # munge runs as a user of its own
            cluster.start()
            undo.pop_all()
        stash[_CLUSTER] = cluster
        request.config.add_cleanup(cluster.stop)
    return stash[_CLUSTER]


def _skip_where_impossible() -> None:
    missing = [program for program in PROGRAMS if _find(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: as root, run: {INSTALL}")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start jobs of any user: run the tests as root, in a container")


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:{SYSTEM_PATH}")


def _free_ports(count: int) -> list[int]:
    """Ports that were free together a moment ago."""
    with ExitStack() as sockets:
        listeners = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]

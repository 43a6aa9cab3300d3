"""The node agent: one process per node that monitors whether each rank is starting, waiting, running or has ended.

`python -m mpitrain.comm.agent` is started by the first rank that registers on a node, before that rank loads torch or
MPI: a thread of a rank cannot print while an import or MPI_Init holds the GIL, nor after the rank was killed. The agent
needs only the standard library, and ends with the last rank of its node.

Protocol: one folder per launch and node, which only this user can read and write (a folder of another user is never
used). Each rank keeps one JSON note in it, its status, and replaces it atomically; ranks and agent read only notes that
this user owns. The file `spoken` is created by the one process that prints the error, and `said` when the launcher has
had time to read the error: only then may a process end. When a rank has waited for SHARE_S, the agents of several nodes
copy their notes to a folder in the current directory and read those of the other nodes there.

state     of the rank                                       the agent
starting  in `stage` of the start; `waits` for the others   at START: reports the late ranks, ends the start
running   in collective `count` at `step`; `waits` or not   detects its end; the rank itself applies the time limit of
                                                            its collective, and reports the late rank from the notes
checking  in step `step` of the doctor, for `limit_s`       at `limit_s`: reports, and ends all ranks
refused   cannot start; `failure` is the reason             prints it unless rank 0 does, ends the others
failed    prints its own error                              ends the others after GRACE_S
left      ends, or continues, without the others            ignores it

A process that ends in the state starting, running or checking has exited without an error message: the agent reports
its rank and the `file` that it was opening, and ends the others. The agent ends a rank by END_SIGNAL (exit code 3), and
after KILL_S by SIGKILL.
"""

from __future__ import annotations

ONE_NODE_START_S, SEVERAL_NODES_START_S = 60.0, 300.0
"""START: imports on one node from a cold disk take 30 s; with many hosts the file server is the bottleneck."""
IMPORT_LIMITS = 5
"""Imports may take this many start limits as long as no rank is blocked in MPI_Init."""
REPORT_WAITING_S = 10.0
"""Time after which a notice names the late ranks, before a user starts to look for the cause."""
SHARE_S = 5.0
"""Most starts take less, and so create no folder in the current directory."""
BEAT_S = 5.0
"""Interval at which a running rank renews its note: negligible cost, short enough for time limits of minutes."""
BEATS_OF_SILENCE = 3
"""A rank that misses this many intervals is silent: stopped, swapped out, or holding the GIL."""
MEMORY_S = 20.0
"""A longer wait in the node's shared memory means damage, if the other ranks wait there too or have left it."""
TICK_S, LONG_TICK_S = 0.2, 1.0
"""Polling intervals of the agent: during starts and checks; and while all ranks run, when ends are signalled."""
ROOT_FIRST_S = 1.5
"""Delay of the other nodes' agents, so that the agent of rank 0, which has most information, reports first."""
FAILING_TOGETHER_S = 6.0
"""Most launches fail alike on all ranks: rank 0, if still loading, has this time to print the error itself."""
SAME_MOMENT_S = 0.3
"""Ranks that end within this time of each other are reported together, since a launcher may end other ranks before the
crashed one has ended."""
ENDING_S = 5.0
"""Longest wait for a process that is exiting: it may take so long on a busy host, and longer with a core dump."""
GRACE_S = {"starting": 1.0, "checking": 0.0, "running": 3.0, "failed": 5.0}
"""Time for the ranks to exit by themselves: after a failure they detect it one after the other."""
KILL_S = 1.0
"""Time from END_SIGNAL to SIGKILL: a healthy process ends within milliseconds, a stopped one does not."""
FORWARD_S = 0.1
"""Time for the launcher to read the error message: it kills all ranks when one ends."""
OTHERS_SPEAK_S = 8.0
"""Longer than FAILING_TOGETHER_S: a rank whose error another process prints waits this long for it."""
LATE_S = 60.0
"""Ranks that arrive after a failed start are ended silently for this time."""

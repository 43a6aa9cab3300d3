"""The node's agent: one process a node that knows of each rank whether it is on its way, waits, works or has ended.

`python -m mpitrain.comm.agent` is started by the first rank that arrives on a node, before that rank loads torch or
MPI: a thread of a rank cannot speak while an import or MPI_Init holds Python's lock, nor after the rank was killed. It
needs the standard library alone, and ends with the last rank of its node.

Protocol: one folder a launch and node, which this user alone can read and write (another user's is never used). Each
rank keeps one JSON note in it, replaced as a whole; ranks and agent read the notes that this user owns. The file
`spoken` is made by the one process that prints the error, `said` when the launcher has had time to read it: only then
may a process end. Agents of several nodes copy their notes to a folder in the current directory, from the moment that a
rank waits long on one of them, and read those of the other nodes there.

state     of the rank                                       the agent
starting  in `stage` of the start; `waits` for the others   at START: names the late ranks, ends the start
running   in collective `count` at `step`; `waits` or not   watches for its end; the rank itself keeps the time limit
                                                            of its collective, and names the late rank by the notes
checking  in step `step` of the doctor, for `limit_s`       at `limit_s`: reports, and ends all ranks
refused   cannot start; `failure` says why                  prints that unless rank 0 does, ends the others
failed    prints its own error                              ends the others after GRACE_S
left      ends, or goes on, without the others              forgets it

A process that ends in the state starting, running or checking has ended without a word: the agent names it with the
`file` that it was opening, and ends the others. A rank is ended by END_SIGNAL (exit code 3), and after KILL_S by
SIGKILL.
"""

from __future__ import annotations

ONE_NODE_START_S, SEVERAL_NODES_START_S = 60.0, 300.0
"""START: imports of a node's ranks from a cold disk take 30 s; on many hosts the file server is the bottleneck."""
IMPORT_LIMITS = 5
"""Start limits that imports may take while no rank waits in MPI_Init yet: nobody is kept waiting."""
SAY_WAITING_S = 10.0
"""A user who sees nothing for longer begins to search: the note that names the late rank comes by then."""
SHARE_S = 5.0
"""Most starts are over by then, and leave no folder in the current directory."""
BEAT_S = 5.0
"""A running rank renews its note so often: nothing in cost, and early enough for limits of minutes."""
BEATS_OF_SILENCE = 3
"""A rank that misses this many is silent: stopped, swapped out, or holding Python's lock."""
MEMORY_S = 20.0
"""Waiting in the node's shared memory that no scheduler explains, when the others wait there too or are beyond it."""
TICK_S, LONG_TICK_S = 0.2, 1.0
"""The agent looks so often during starts and checks; and while all run, where the system itself tells of an end."""
ROOT_FIRST_S = 1.5
"""Several agents find the same at one moment: that of rank 0, which knows most, may speak first."""
FAILING_TOGETHER_S = 6.0
"""Most launches fail alike on all ranks: rank 0, still loading, may be on its way to say so."""
SAME_MOMENT_S = 0.3
"""A launcher ends ranks when the connections of a crashed one close, before the system has ended that one."""
ENDING_S = 5.0
"""A process that exits, as the system tells, may take so long on a busy host; a core dump longer."""
GRACE_S = {"starting": 1.0, "checking": 0.0, "running": 3.0, "failed": 5.0}
"""What ranks get to end by themselves: after a failure they hear of it from each other, one after the other."""
KILL_S = 1.0
"""From END_SIGNAL to SIGKILL: a healthy process ends in milliseconds, a stopped one does not."""
FORWARD_S = 0.1
"""A launcher ends all when one rank ends: our line must have reached it."""
OTHERS_SPEAK_S = 8.0
"""Longer than FAILING_TOGETHER_S: a rank that leaves its words to others waits for them."""
LATE_S = 60.0
"""Ranks that come late to a failed start are ended silently, for as long as a start may take."""

/* How a run stops, saves, resumes and is started again, with everything that may end it in between.
 *
 * Checked by Spin: tests/campaign/test_campaign_protocol.py. Each safeguard can be taken out by a switch (-DNO_...), and
 * the property that it keeps must then fail. The words are those of the package: a save writes a folder under another
 * name, waits for the disk, renames it, and writes the commit record last; a checkpoint without one was never finished.
 *
 *   RANKS ranks     STEPS steps, of which every one is saved     MOST_RESTARTS starts after the first
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef MOST_RESTARTS
#define MOST_RESTARTS 2
#endif
#define SLOTS 6                 /* STEPS + 1 of them are used: step 0 needs no checkpoint */

/* What the disk holds of a part of a checkpoint. A power cut takes what is CACHED, or leaves it. */
#define NONE 0
#define CACHED 1
#define ON_DISK 2
#define ROTTEN 3
#define DONE 0
#define STOPPED 5
#define KILLED 9

byte content[SLOTS], name[SLOTS], commit[SLOTS];
byte records[SLOTS];            /* how often metrics.jsonl tells of a step */
byte saved = 0;                 /* the newest step whose save has returned, or a safe older one when that one rots */
bool alive = false, ended = false, gave_up = false, power_cut = false, has_rotten = false;
byte loaded = 0, restarts = 0, code = 0, running = 0, newest = 0;
bool asked[RANKS];              /* a signal came to this rank */
bool stopping = false;          /* what the ranks agreed on */
byte stopped_at[RANKS];

/* A collective: all ranks come, one result for all. */
byte arrived = 0;
bool generation = false, any_asked = false;

inline meet(mine, before) {
    atomic {
        before = generation;
        any_asked = any_asked || mine;
        arrived++;
        if
        :: arrived == RANKS ->
            stopping = any_asked; any_asked = false; arrived = 0; generation = !generation
        :: else
        fi
    }
    (generation != before)
}

#ifdef NO_CHECKSUM
#define IS_WHOLE(s) (name[s] != NONE && commit[s] != NONE)
#else
#define IS_WHOLE(s) (name[s] != NONE && commit[s] != NONE && (content[s] == CACHED || content[s] == ON_DISK))
#endif
#ifdef NO_COMMIT_RECORD
#undef IS_WHOLE
#define IS_WHOLE(s) (name[s] != NONE)
#endif

inline find_newest() {
    d_step {
        newest = STEPS;
        do
        :: newest > 0 && !(IS_WHOLE(newest)) -> newest--
        :: else -> break
        od
    }
}

inline remove_older(s) {
    d_step {
        older = 0;
        do
        :: older < s -> name[older] = NONE; commit[older] = NONE; content[older] = NONE; older++
        :: else -> older = 0; break
        od
    }
}

inline save(s) {
    if
#ifndef REPLACES_WHAT_IS_COMMITTED
    :: IS_WHOLE(s) ->           /* a committed step is never written again */
#ifndef NO_SYNC_OF_WHAT_IS_FOUND
        atomic { content[s] = ON_DISK; name[s] = ON_DISK; commit[s] = ON_DISK }
#else
        skip
#endif
    :: else ->
#else
    :: true ->
#endif
        atomic { commit[s] = NONE; name[s] = NONE; content[s] = NONE }
#ifdef NO_COMMIT_RECORD
        name[s] = CACHED;       /* nothing tells a folder that is being written */
        content[s] = CACHED;
        content[s] = ON_DISK;
        name[s] = ON_DISK;
#else
        content[s] = CACHED;
#ifndef NO_SYNC
        content[s] = ON_DISK;
#endif
        name[s] = CACHED;
#ifdef REMOVES_OLDER_FIRST
        remove_older(s);
#endif
        commit[s] = CACHED;
        atomic { name[s] = ON_DISK; commit[s] = ON_DISK }
#endif
        skip
    fi;
    atomic { saved = s; remove_older(s) }
}

proctype Rank(byte me) {
    byte step = loaded, older = 0;
    bool before, leaves = false;
    {
        if
        :: me == 0 ->
#ifndef NO_CUTTING_BACK
            d_step {
                older = loaded + 1;
                do
                :: older < SLOTS -> records[older] = 0; older++
                :: else -> older = 0; break
                od
            }
#else
            skip
#endif
        :: else
        fi;
        do
        :: !leaves && (step < STEPS || step == loaded) ->
            /* the request to stop travels with the sum of a step; a resumed run looks before its first one */
            meet(asked[me], before);
#ifdef NO_AGREEMENT
            leaves = asked[me] && step > 0;
#else
            leaves = stopping && step > 0;   /* before the first step there is nothing to save */
#endif
            /* every rank has read the result before the next collective may change it */
            meet(false, before);
            if
            :: leaves -> stopped_at[me] = step
            :: !leaves && step == STEPS -> break
            :: else ->
                step++;
                if :: me == 0 -> records[step]++ :: else fi
            fi;
            if :: me == 0 -> save(step) :: else fi;
#ifndef NO_BARRIER_AFTER_SAVING
            meet(false, before);
#endif
            if :: step == STEPS && !leaves -> break :: else fi
        :: leaves -> break
        :: else -> break
        od;
        atomic { if :: leaves -> code = STOPPED :: else fi; running-- }
    } unless {
        atomic { !alive -> running-- }
    }
}

/* Signals, kills of one rank (which its launcher turns into the end of all), power cuts. */
active proctype World() {
    do
    :: atomic { alive && running == RANKS && code == 0 && !asked[0] -> asked[0] = true }
    :: atomic { alive && running == RANKS && code == 0 && !asked[RANKS - 1] -> asked[RANKS - 1] = true }
    :: atomic { alive && running > 0 && code == 0 -> alive = false; code = KILLED }
    :: atomic { alive && running > 0 && code == 0 -> alive = false; code = KILLED; power_cut = true }
    :: ended -> break
    od
}

inline cut_power() {
    s = 0;
    do
    :: s < SLOTS ->
        if :: content[s] == CACHED -> if :: content[s] = NONE :: content[s] = ON_DISK fi :: else fi;
        if :: name[s] == CACHED -> if :: name[s] = NONE :: name[s] = ON_DISK fi :: else fi;
        if :: commit[s] == CACHED -> if :: commit[s] = NONE :: commit[s] = ON_DISK fi :: else fi;
        s++
    :: else -> s = 0; break
    od;
    power_cut = false
}

#ifdef TRACE
#define TELL(what, number) event ! what, number
chan event = [0] of { byte, byte };
#define STARTS 1
#define ENDS 2
#define HOLDS 3
active proctype Observed() {
#include "observed.pml"
    assert(false)               /* reached: the model can do what was seen */
}
#else
#define TELL(what, number) skip
#endif

active proctype Launcher() {
    byte s = 0;
    do
    :: true ->
        atomic { find_newest(); loaded = newest }
        assert(loaded >= saved);                                        /* nothing that was saved is lost */
        assert(loaded == 0 || content[loaded] == CACHED || content[loaded] == ON_DISK);  /* no garbage is loaded */
        TELL(STARTS, loaded);
        atomic {
            arrived = 0; any_asked = false; stopping = false; code = 0; running = RANKS; alive = true;
            s = 0;
            do :: s < RANKS -> asked[s] = false; stopped_at[s] = 0; s++ :: else -> s = 0; break od;
            do :: s < RANKS -> run Rank(s); s++ :: else -> s = 0; break od
        }
        do
        :: running == 0 -> break
        :: atomic { alive && running > 0 && running < RANKS && code == STOPPED -> alive = false }  /* mpirun ends the rest */
        od;
        atomic { alive = false; if :: power_cut -> cut_power() :: else fi; find_newest() }
        if
        :: code == STOPPED ->           /* exit code 5 says that a checkpoint of this very step was written */
            assert(newest == stopped_at[0] && stopped_at[0] == stopped_at[RANKS - 1])
        :: else
        fi;
#ifndef TRACE
        if                              /* bits rot: nothing is promised then but that no garbage is loaded */
        :: saved > 0 && !has_rotten -> atomic { content[saved] = ROTTEN; has_rotten = true; saved = 0; find_newest() }
        :: true
        fi;
#endif
        TELL(ENDS, code);
        TELL(HOLDS, newest);
        if
        :: code == DONE ->
            s = 1;
            do :: s <= STEPS -> assert(records[s] == 1); s++ :: else -> s = 0; break od;
            break
#ifndef NO_BOUND
        :: code != DONE && restarts == MOST_RESTARTS -> gave_up = true; break
        :: code != DONE && restarts < MOST_RESTARTS -> restarts++
#else
        :: code != DONE
#endif
        fi
    od;
    ended = true
}

#ifndef TRACE
ltl comes_to_an_end { <> ended }
#endif

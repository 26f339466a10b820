/*
 * The life of one job and generation, as small as it can be and still go wrong in every way that matters.
 *
 * What is modelled: submit (events, listings, requests), claim, run, give_back, the commit record, its mirror in the
 * ledger, publication of two outputs, the manifest, `published`, the sweep, finishers that take over, retention of
 * ledger entries, and the loss of Redis (emptied, or an old copy restored) with the new epoch and its rebuild.
 * Each atomic block is one script of the ledger or one request to the store; in between anything may happen.
 *
 * Faults have budgets (deaths, lapses of a living holder's lease, failures and drains together; losses of Redis; a
 * foreign object under an output's key), so every execution ends. The test checks that too: no cycle at all. A property of all ends is
 * therefore a liveness property, without any assumption of fairness; `Judge` states it.
 *
 * Agents and finishers are named by their number, which also stands for the nonce of their token. A process that died
 * starts again under its number, without memory.
 *
 * Names that may be defined: sizes (AGENTS, FINISHERS, FAULTS, ...), variants (RESTORE: Redis comes back as an old copy;
 * REQUEST: the job is an API call; INPUT_GONE: the user may remove or overwrite the input; LARGE: outputs are copied by
 * the store) and mutations (WITHOUT_...), each of which takes one protection out. tests/model/test_model.py runs them.
 */

#ifndef AGENTS
#define AGENTS 2
#endif
#ifndef FINISHERS
#define FINISHERS 2
#endif
#ifndef FAULTS
#define FAULTS 2 /* deaths, lapses of a living holder's lease, failures, drains: together */
#endif
#ifndef EVENTS
#define EVENTS 1 /* besides the first one */
#endif
#ifndef FOREIGNERS
#define FOREIGNERS 0
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif

/* -- states and contents ------------------------------------------------------------------------------------------ */
#define ABSENT 0
#define QUEUED 1 /* with `released`, which differs for placement only */
#define RUNNING 2
#define COMMITTED 3
#define ENDED 4

#define NOTHING 0
#define NO_OUTPUTS 9 /* a commit that says failed, cancelled or superseded */
#define FOREIGN 10   /* an object of the user's own */
#define PUBLISHED 1  /* manifests: succeeded, with outputs */
#define FAILED 2

#define LEADER (AGENTS + FINISHERS + 1)

/* -- the store: what is here is never lost ------------------------------------------------------------------------ */
byte commit;    /* which content counts (1, or 2 and more where that should never be), or NO_OUTPUTS */
byte out[2];    /* which content each key shows */
byte manifest;
byte durable = 1; /* the epoch in the bucket */
bit present = 1;  /* the input is listed */

/* -- the ledger: all of it may be lost ---------------------------------------------------------------------------- */
typedef Ledger {
  byte live;     /* the epoch, 0: none */
  bit ready;     /* its sequence is above 0: the rebuild is complete */
  byte state;
  byte attempt;
  byte counted;  /* the epoch in which attempts are counted */
  byte accepted; /* the epoch of the submit */
  byte epoch;    /* of the token */
  byte nonce;    /* of the token */
  bit look;
  bit settled;
}
Ledger led;
#ifdef RESTORE
Ledger saved;
bit restored; /* older than the bucket knows: the keeper will notice */
#endif

/* -- faults that are left ----------------------------------------------------------------------------------------- */
byte faults = FAULTS;
byte foreigners = FOREIGNERS;
bit busy[LEADER + 1]; /* agents and finishers that live, and renew the lease of what they have in hand */

/* -- what only the properties see --------------------------------------------------------------------------------- */
bit stood;     /* the commit record was there when this life of the ledger began */
bit foreigner; /* the user's own object lies under the first output's key */

/* The invariants of the store, looked at after each write to it. */
inline check() {
  assert(manifest != PUBLISHED || (out[0] == commit && out[1] == commit)); /* a manifest means complete outputs */
  assert(out[0] == NOTHING || out[0] == FOREIGN || out[1] == NOTHING || out[0] == out[1]); /* of one attempt */
  assert(!foreigner || out[0] == FOREIGN); /* on_conflict: fail */
#ifdef NEVER_ALL_AT_ONCE
  assert(!(busy[1] && busy[2] && busy[3] && busy[4])) /* not true, and the search has to see it */
#endif
}

/* -- scripts of the ledger ---------------------------------------------------------------------------------------- */
#ifdef WITHOUT_TOKEN_CHECK
#define SAME_TOKEN true
#else
#define SAME_TOKEN (led.nonce == me && led.attempt == attempt)
#endif
#ifdef WITHOUT_EPOCH_IN_TOKEN
#define SAME_EPOCH true
#else
#define SAME_EPOCH (epoch == led.live && led.epoch == epoch)
#endif
#define HELD ((led.state == RUNNING || led.state == COMMITTED) && SAME_EPOCH && SAME_TOKEN)
#ifdef WITHOUT_REFUSAL
#define ANSWERS true
#else
#define ANSWERS (led.live != 0)
#endif

/* A token of an older life moves nothing. */
#define OF_THIS_LIFE assert(epoch == led.live)

#ifdef WITHOUT_LOOK_IN_REBUILD
#define REBUILDING false
#else
#define REBUILDING (led.live != 0 && !led.ready)
#endif

inline forget_job() {
  led.state = ABSENT; led.attempt = 0; led.counted = 0; led.accepted = 0; led.epoch = 0; led.nonce = 0; led.look = 0
}

inline submit(look_first) {
  if
  :: ANSWERS && led.state == ABSENT && !led.settled ->
     led.state = QUEUED; led.accepted = led.live; led.look = look_first || REBUILDING
  :: else
  fi
}

inline requeue() {
  led.state = QUEUED; led.nonce = 0; led.epoch = 0
}

/* To somebody who ends it: a new token, no attempt. */
inline take() {
  led.nonce = me; led.epoch = led.live; led.look = 1;
  epoch = led.live; attempt = led.attempt; busy[me] = 1
}

inline settle_ended() {
  if
  :: ANSWERS && HELD -> OF_THIS_LIFE; led.state = ENDED; led.nonce = 0; led.settled = 1
  :: else
  fi
}

inline give_back() {
  if :: ANSWERS && HELD && led.state == RUNNING -> OF_THIS_LIFE; requeue() :: else fi
}

#ifdef RESTORE
#define IS_OLD restored
#else
#define IS_OLD false
#endif
#ifdef INPUT_GONE
#define INPUT_THERE present
#else
#define INPUT_THERE true
#endif

/* A process may die before each thing that it does to the world. */
#define OR_DIE :: atomic { faults > 0 -> faults--; goto died }

/* -- whoever brings a job to its end: agents, finishers, and the leader in its rebuild ---------------------------- */

/* One output. A conditional put: what it finds there is its own content (done) or the user's (a conflict). */
inline put(key) {
  if
#ifdef WITHOUT_CONDITIONAL_OUTPUT
  :: atomic { out[key] = found; check() }
#else
  :: atomic { out[key] == NOTHING -> out[key] = found; check() }
  :: atomic { out[key] == FOREIGN -> goto failed }
  :: out[key] == found
  :: atomic { out[key] != NOTHING && out[key] != FOREIGN && out[key] != found -> assert(false) }
#endif
  OR_DIE
  fi
}

/* A large one: a HEAD, then a copy, which knows no condition. */
inline copy(key) {
  if
  :: out[key] == found
  :: atomic { out[key] == FOREIGN -> goto failed }
  :: out[key] != found && out[key] != FOREIGN;
     if
     :: atomic { out[key] = found; check() }
     OR_DIE
     fi
  fi
}
#ifdef LARGE
#define publish_output copy
#else
#define publish_output put
#endif

/* The lease is over: the holder died or has done with it, its epoch is void, or it lives and sleeps. */
#define IN_HAND (led.state == RUNNING || led.state == COMMITTED)
#define DESERTED (!busy[led.nonce] || led.epoch != led.live)

/* Idle workers of a kind are alike, so the first of them goes. */
#define IN_TURN (me == 1 || me == AGENTS + 1 || busy[me - 1])

proctype Worker(byte me) {
  byte epoch, attempt, found;
  bit won, look, known, good;

end_idle:
  if
  /* claim */
  :: atomic { me <= AGENTS && ANSWERS && led.state == QUEUED && IN_TURN ->
       busy[me] = 1;
       attempt = (led.counted == led.live -> led.attempt : 0);
       look = led.look || attempt > 0 || led.accepted != led.live;
       known = commit != NOTHING && (stood || attempt > 0);
       attempt++; epoch = led.live;
       assert(attempt <= MAX_ATTEMPTS);
       led.state = RUNNING; led.attempt = attempt; led.counted = led.live; led.epoch = led.live; led.nonce = me;
       led.look = 1;
#ifdef WITHOUT_LOOK_FIRST
       look = 0;
#endif
       if :: look -> look = 0; goto resume :: else -> goto work fi
     }
  /* sweep */
  :: atomic { me > AGENTS && me != LEADER && led.live != 0 && IN_HAND && IN_TURN &&
              (DESERTED || faults > 0) ->
       if :: DESERTED :: else -> faults-- fi;
       if
       :: led.state == COMMITTED -> take(); goto resume
       :: led.state == RUNNING && led.counted == led.live && led.attempt >= MAX_ATTEMPTS ->
          take(); goto decide
       :: else -> requeue(); goto end_idle
       fi
     }
  /* the epoch keeper: a ledger without an epoch, an older one than the bucket knows, a rebuild that broke off */
  :: atomic { me == LEADER && (led.live == 0 || IS_OLD) ->
       durable++; led.live = durable; stood = commit != NOTHING;
#ifdef RESTORE
       restored = 0;
#endif
#ifdef WITHOUT_WAITING_FOR_SETTLED
       led.ready = 1;
#else
       led.ready = 0;
#endif
       epoch = led.live; goto rebuild
     }
  :: atomic { me == LEADER && led.live != 0 && !IS_OLD && !led.ready -> epoch = led.live; goto rebuild }
#ifndef WITHOUT_LOOKING_FOR_FORGOTTEN
  /* now and then: commits of which the ledger knows nothing */
  :: atomic { me == LEADER && led.ready && commit != NOTHING && led.state == ABSENT && !led.settled ->
       epoch = led.live; found = commit; goto publish
     }
#endif
  fi;

resume: /* the manifest, then the commit record */
  atomic {
    if
    :: manifest != NOTHING -> goto tell
    :: manifest == NOTHING && commit != NOTHING -> found = commit; won = 1; goto mirror
    :: else -> goto work
    fi
  };

work:
  atomic { assert(!known); /* what was known to have ended never runs again */ };
  if
  :: INPUT_THERE -> good = 1
  :: !INPUT_THERE -> good = 0 /* gone before the run, or changed before the commit */
  :: atomic { faults > 0 -> faults--; good = 0 } /* a permanent failure, a time-out, a cancel */
  :: atomic { faults > 0 && attempt < MAX_ATTEMPTS -> faults--; give_back(); goto died } /* one that may pass */
  :: atomic { faults > 0 -> /* a drain */
       faults--;
       if :: ANSWERS && HELD && led.state == RUNNING -> led.attempt-- :: else fi;
       give_back(); goto died
     }
  OR_DIE
  fi;

decide: /* Record.commit: If-None-Match, and the record that stands */
  if
  :: atomic {
       if
#ifdef WITHOUT_CONDITIONAL_COMMIT
       :: true ->
#else
       :: commit == NOTHING ->
#endif
          commit = (good -> 1 + commit % NO_OUTPUTS : NO_OUTPUTS); won = 1
       :: else
       fi;
       found = commit; good = 0;
       check()
     }
  OR_DIE
  fi;

mirror: /* Ledger.commit; a ledger that is away is no reason to keep results back */
  if
  :: atomic {
       if
       :: ANSWERS && HELD -> OF_THIS_LIFE; led.state = COMMITTED
       :: ANSWERS && !HELD && !won -> goto died
       :: else
       fi;
       won = 0;
#ifdef WITHOUT_MANIFEST_BEFORE_SETTLED
       settle_ended();
#endif
       goto publish
     }
  OR_DIE
  fi;

publish: /* Record.publish: anybody, at any time, again; with several outputs all are looked at before the first put */
  atomic {
    if
    :: manifest != NOTHING -> goto tell
    :: manifest == NOTHING && (found == NO_OUTPUTS || out[0] == FOREIGN) -> goto failed
    :: else
    fi
  };
#ifdef WITHOUT_MANIFEST_LAST
  atomic { manifest = PUBLISHED; check() };
#endif
  publish_output(0);
  publish_output(1);
  if
  :: atomic {
       if :: manifest == NOTHING -> manifest = PUBLISHED :: else fi;
       check();
       if :: me == LEADER || HELD -> goto tell :: else -> goto died fi /* what is stale stays so */
     }
  OR_DIE
  fi;
failed:
  if
  :: atomic { if :: manifest == NOTHING -> manifest = FAILED :: else fi; check() }
  OR_DIE
  fi;

tell: /* Ledger.published; the leader settles what it published and goes on with its rebuild */
  if
  :: atomic { me != LEADER -> settle_ended(); goto died }
  :: atomic { me == LEADER ->
       if :: led.live == epoch -> led.settled = 1 :: else fi;
       if :: led.ready -> goto died :: else -> goto requests fi
     }
  OR_DIE
  fi;

rebuild: /* the settled set from the names of manifests, then commits without one, then requests without one */
  if
  :: atomic { manifest != NOTHING -> look = 1; goto tell }
  :: atomic { manifest == NOTHING -> }; /* listed, and only then the commits */
     atomic {
       if
       :: commit != NOTHING -> found = commit; goto publish
       :: else -> goto requests
       fi
     }
  OR_DIE
  fi;
requests:
  if
  :: atomic { led.live == epoch ->
#ifdef REQUEST
       submit(1);
#endif
       led.ready = 1
     }
  :: led.live != epoch
  OR_DIE
  fi;

died: /* without memory, and its lease is over some time; who is done waits for work likewise */
  atomic {
    busy[me] = 0;
    epoch = 0; attempt = 0; found = 0; won = 0; look = 0; known = 0; good = 0;
    goto end_idle
  }
}

/* -- the world around --------------------------------------------------------------------------------------------- */
proctype World() {
  byte events = EVENTS;
end_quiet:
  do
  /* an event, or a doubled one, or none */
  :: atomic { events > 0 -> events--; submit(0) }
  /* the listing: what the ledger does not know is submitted again, to be looked for first */
  :: atomic { led.live != 0 && INPUT_THERE && led.state == ABSENT && !led.settled -> submit(1) }
  /* finished jobs are forgotten; their identity stays */
  :: atomic { led.live != 0 && led.state == ENDED -> forget_job() }
  :: atomic { foreigners > 0 ->
       foreigners--;
       if
       :: out[0] == NOTHING && manifest == NOTHING -> out[0] = FOREIGN; foreigner = 1
       :: skip
       fi
     }
#ifdef INPUT_GONE
  :: atomic { present -> present = 0 }
#endif
  od
}

proctype Redis() {
#ifdef RESTORE
  byte copies = 1;
#endif
  byte losses = LOSSES;
end_up:
  do
#ifdef RESTORE
  :: d_step { copies > 0 ->
       copies--;
       saved.live = led.live; saved.ready = led.ready; saved.state = led.state; saved.attempt = led.attempt;
       saved.counted = led.counted; saved.accepted = led.accepted; saved.epoch = led.epoch; saved.nonce = led.nonce;
       saved.look = led.look; saved.settled = led.settled
     }
  :: d_step { losses > 0 && copies == 0 ->
       losses--; restored = 1;
       led.live = saved.live; led.ready = saved.ready; led.state = saved.state; led.attempt = saved.attempt;
       led.counted = saved.counted; led.accepted = saved.accepted; led.epoch = saved.epoch; led.nonce = saved.nonce;
       led.look = saved.look; led.settled = saved.settled
     }
#else
  :: atomic { losses > 0 ->
       losses--;
       forget_job(); led.live = 0; led.ready = 0; led.settled = 0; stood = commit != NOTHING
     }
#endif
  od
}

/* When nothing can happen any more, the job has ended: in the bucket, and as far as the ledger knows. */
proctype Judge() {
  timeout;
  assert(manifest != NOTHING || (!present && commit == NOTHING));
  assert(manifest == NOTHING || (commit != NOTHING && (manifest == FAILED || out[0] == commit)));
  assert(led.ready && (led.settled || manifest == NOTHING || !present));
  assert(led.state == ENDED || led.state == ABSENT)
}

init {
  byte number = 1;
  atomic {
    led.live = 1; led.ready = 1;
    if :: submit(0) :: skip fi; /* the first event comes, or is lost */
    do
    :: number <= LEADER -> run Worker(number); number++
    :: else -> break
    od;
    run World(); run Redis(); run Judge()
  }
}

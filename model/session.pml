/* One session, two owners: commit, interrupt, takeover, recovery, background compaction. What is
 * left out, and why: docs/contributing/model.md.
 *
 * A step is one atomic action, as an actor decides nothing between two awaits: one item that it
 * reads is one step. Each names what it stands for; a quick test looks whether that is still there.
 * A printf is a line of the trace that a counterexample is told as. Every run of the model comes to
 * rest, because its bounds are only ever used up: what is true "in the end" is looked at there.
 */
#ifndef SENDS
#define SENDS 2         /* at most 3: two bits of `ctx` hold the turn of a message */
#define INTERRUPTS 1    /* at least 1 */
#define STEPS 1         /* replies that ask for tools */
#define REWINDS 1
#define CONFIGURES 1    /* changes of model, system or tools: they void the view */
#define PLANS 1         /* compaction jobs */
#define TAKEOVERS 1     /* of a session whose owner lives */
#define CRASHES 1
#define LOSSES 1        /* appends whose answer is lost, or that are lost themselves */
#define GHOSTS 1        /* works that go on after their turn */
#endif
#ifndef BUG
#define BUG 0
#endif
#ifndef SCRATCH
#define SCRATCH hidden  /* not part of a state; a search by breadth cannot have that */
#endif
/* Bugs that can be put in, one at a time: see docs/contributing/model.md. */
#define NO_FENCE 1
#define PUBLISH_BEFORE_COMMIT 2
#define FRONTIER_WITHOUT_COMPARE 3
#define INTERRUPT_AFTER_DECISION 4
#define MARK_OFF_BY_ONE 5
#define MARK_WHEN_READ 6
#define TURN_IDS_REUSED 7
#define ANSWER_BEFORE_DURABLE 8
#define NO_RECOVERY 9
#define CONFLICT_IS_SUCCESS 10
#define NO_TAGS 11
#define COMPACT_WHILE_STREAMING 12
#define CONFIGURED_UNSEEN 13

#define LOG 20
#define bit_of(t) (1 << (t))
#define below(i) ((1 << (i)) - 1)
#define promise(holds, broken) if :: (holds) :: else -> printf(broken); assert(false) fi

/* A record is 16 * its kind + its turn, or how many messages a compaction covers. */
#define BEGUN 1         /* turn.accepted of a turn that starts with it */
#define QUEUED 2        /* turn.accepted */
#define STARTED 3
#define CALLS 4         /* tools.requested */
#define STEP 5          /* step.completed */
#define COMMITTED 6
#define ABORTED 7
#define RESUMED 8
#define COMPACTED 9
#define REWOUND 10
#define CONFIGURED 11
#define rec(kind, of) ((kind) * 16 + (of))
#define kind_of(r) ((r) / 16)
#define of(r) ((r) % 16)

/* session/actor/actor.py: ActorStatus */
#define COLD 0
#define TAKING 1
#define RECOVERING 2
#define LIVE 3
/* turns/machine.py: Phase */
#define NONE 0
#define ACCEPTED 1
#define BUILDING 2
#define STREAMING 3
#define JOURNALING 4
#define TOOLS 5
#define STOPPING 6
#define COMMITTING 7
#define ABORTING 8
/* store/protocol.py: AppendResult */
#define APPENDED 1
#define CONFLICT 2
#define LOST 3
/* session/compacting/machine.py: Phase */
#define PLANNING 1
#define READY 2
#define PREPARING 3
#define WRITING 4
/* session/actor/interrupts.py: PendingInterrupt */
#define UNREAD 1
#define PENDING 2
#define ANSWERED 3

/* The store's row and log, and what the log says, for checking: sets of turns, as bits. */
byte epoch = 1, head, holder, log[LOG], writer[LOG], accepted, ended, dropped;
byte stage[INTERRUPTS], whose[INTERRUPTS], mark[INTERRUPTS], waits[INTERRUPTS], aborts[INTERRUPTS];
byte to_send = SENDS, to_interrupt = INTERRUPTS, to_rewind = REWINDS, to_configure = CONFIGURES, steps = STEPS, plans = PLANS,
     takeovers = TAKEOVERS, crashes = CRASHES, losses = LOSSES, ghosts = GHOSTS;
SCRATCH byte i, j, k, t, limit, covered;

typedef Fold {          /* session/log/state.py: SessionState */
  byte head, last, open, running, gen, ver, covers;
  byte n, base;         /* messages of the context; those of them that are committed */
  int ctx;              /* the turn of each */
  bool calls            /* does the running turn wait for results? */
};
typedef Owner {
  byte standing, epoch, taken;
  Fold s;
  byte q[8], qn, sent, answer;                                  /* session/log/journal.py: Journal */
  byte ingress, mark, sends, rewinds, promises;                 /* session/actor/mailbox.py: Mailbox */
  byte cur, phase, runs, waiting, came[4], top, late, ghost;    /* session/actor/turn_queue.py: TurnQueue */
  byte waiting_change; bool writing_change, configuring;        /* session/actor/history_commands.py: HistoryCommands, session/actor/configuration.py: Configuration */
  byte job, jgen, jver, jn; int jctx                            /* session/compacting/machine.py: Compaction */
};
Owner own[2];
#define me own[o]
#define S own[o].s
#define living (me.standing == LIVE)
#define readable (!me.mark && (me.sends | me.rewinds) && !me.waiting_change && !me.writing_change)
#define unsettled (me.configuring && BUG != CONFIGURED_UNSEEN)
#define same_ground (S.gen == me.jgen && S.ver == me.jver && me.jn <= S.n \
                     && (S.ctx & below(2 * me.jn)) == me.jctx)
#define stands (BUG == FRONTIER_WITHOUT_COMPARE || same_ground)   /* session/compacting/snapshot.py: Snapshot.is_current */
/* Is there work, and no living owner in the way? */
#define wanted ((to_send || accepted != ended) && (holder == o || own[holder].standing == COLD))
#define each(x, from, to) x = from; do :: x < (to) ->
#define done(x) x++ :: else -> break od

/* ---- the fold ---- */
inline say(turn) { S.ctx = S.ctx | ((turn) << (2 * S.n)); S.n++ }
inline clamp() {        /* compaction/view/view.py: View.clamped */
  S.n = S.base; S.ctx = S.ctx & below(2 * S.n);
  if :: S.covers > S.n -> S.covers = S.n; S.ver++ :: else fi }
inline fold(r) {        /* session/log/state.py: SessionState.apply */
  S.head++;
  if
  :: kind_of(r) <= STARTED ->
     S.open = S.open | bit_of(of(r));
     if :: BUG != TURN_IDS_REUSED && S.last < of(r) -> S.last = of(r) :: else fi;
     if :: kind_of(r) != QUEUED -> S.running = of(r); say(of(r)) :: else fi
  :: kind_of(r) == CALLS || kind_of(r) == STEP -> S.calls = (kind_of(r) == CALLS); say(of(r))
  :: kind_of(r) == COMMITTED -> say(of(r)); S.base = S.n;
     S.open = S.open & ~bit_of(of(r)); S.running = 0; S.calls = 0
  :: kind_of(r) == ABORTED -> S.open = S.open & ~bit_of(of(r));
     if :: S.running == of(r) -> S.running = 0; S.calls = 0; clamp() :: else fi
  :: kind_of(r) == COMPACTED -> S.ver++; if :: S.covers < of(r) -> S.covers = of(r) :: else fi
  :: kind_of(r) == CONFIGURED -> S.ver++        /* compaction/view/view.py: View.voided */
  :: kind_of(r) == REWOUND -> S.gen++; t = (S.ctx >> (2 * (S.base - 1))) & 3;     /* the last turn goes */
     do :: S.base && ((S.ctx >> (2 * (S.base - 1))) & 3) == t -> S.base-- :: else -> break od; clamp()
  :: else
  fi;
  promise(S.covers <= S.n, "BROKEN a compaction never covers messages that are gone\n") }

/* ---- the journal ---- */
inline take_in(r) {     /* session/actor/actor.py: Actor._take_in */
  j = S.head + 1;
  promise(j <= head, "BROKEN whatever was published is in the log\n");
  promise(writer[j] == me.epoch, "BROKEN a fenced owner publishes nothing behind a takeover\n");
  promise(log[j] == r, "BROKEN what is published is a prefix of the log\n");
  if
  :: kind_of(r) == COMPACTED ->
     promise(same_ground, "BROKEN a compaction applies only on what it was made for\n");
     promise(me.phase != STREAMING, "BROKEN no compaction is applied while a reply streams\n")
  :: kind_of(r) == ABORTED && living ->
     promise(me.came[of(r)] < me.top, "BROKEN an interrupt never aborts a send enqueued after it\n")
  :: else fi;
  fold(r) }
inline write(r) {       /* session/log/journal.py: Journal.write */
  me.q[me.qn] = r; me.qn++;
  if :: BUG == PUBLISH_BEFORE_COMMIT -> take_in(me.q[me.qn - 1]) :: else fi }

/* ---- the turns ---- */
inline drop_job() { me.job = NONE; me.jgen = 0; me.jver = 0; me.jn = 0; me.jctx = 0 }
inline accept(number) { /* session/actor/turn_queue.py: TurnQueue._accept */
  S.last++; me.came[S.last] = number;
  printf("owner %d accepts send %d as turn %d\n", o, number, S.last);
  if :: me.runs == 0 -> me.cur = S.last; me.phase = ACCEPTED; write(rec(BEGUN, S.last))
     :: else -> me.waiting = me.waiting | bit_of(S.last); write(rec(QUEUED, S.last)) fi;
  me.runs = me.runs | bit_of(S.last) }
inline abort(turn) {    /* session/actor/turn_runner.py: TurnRunner._journal_abort */
  write(rec(ABORTED, turn));
  if :: turn == me.cur -> me.phase = ABORTING;
        if :: me.job == PREPARING -> drop_job() :: else fi :: else fi }
inline interrupt_all() {        /* session/actor/turn_queue.py: TurnQueue.interrupt_all */
  covered = 0;
  each(t, 1, SENDS + 1)
    if :: (me.runs & bit_of(t)) && me.came[t] < limit && t != me.cur -> covered = covered | bit_of(t);
          if :: me.waiting & bit_of(t) -> me.waiting = me.waiting & ~bit_of(t); abort(t) :: else fi
       :: else fi;
  done(t);
  if    /* session/actor/turn_queue.py: TurnQueue._interrupt_run */
  :: me.cur && me.came[me.cur] < limit && (me.phase != COMMITTING || BUG == INTERRUPT_AFTER_DECISION) ->
     covered = covered | bit_of(me.cur);
     if :: me.phase == ACCEPTED || me.phase == COMMITTING -> abort(me.cur)
        :: me.phase == ABORTING
        :: else -> me.phase = STOPPING fi
  :: me.cur && me.came[me.cur] < limit && me.phase == COMMITTING && BUG != INTERRUPT_AFTER_DECISION ->
     me.late = me.late | bit_of(me.cur); printf("owner %d: it is too late for turn %d\n", o, me.cur)
  :: else
  fi }
inline answer_interrupts() {    /* session/actor/turn_queue.py: TurnQueue._answer_interrupts */
  each(i, 0, INTERRUPTS)
    if :: stage[i] == PENDING && whose[i] == o && (waits[i] == 0 || BUG == ANSWER_BEFORE_DURABLE) ->
          stage[i] = ANSWERED; me.promises--; printf("owner %d answers the interrupt\n", o);
          promise((aborts[i] & ~dropped) == 0, "BROKEN an interrupt is answered after its record is durable\n");
          covered = (me.sends & below(mark[i]));
          each(t, 1, SENDS + 1)
            if :: (me.runs & ~me.late & bit_of(t)) && me.came[t] < mark[i] -> covered = 1 :: else fi;
          done(t);
          promise(covered == 0, "BROKEN an interrupt covers every send before it\n");
          aborts[i] = 0; mark[i] = 0; whose[i] = 0
       :: else fi;
  done(i) }
inline turn_ended(turn) {       /* session/actor/turn_queue.py: TurnQueue._turn_ended */
  me.runs = me.runs & ~bit_of(turn);
  each(i, 0, INTERRUPTS) if :: whose[i] == o -> waits[i] = waits[i] & ~bit_of(turn) :: else fi; done(i);
  answer_interrupts();
  me.came[turn] = 0; me.late = me.late & ~bit_of(turn);
  if :: turn == me.cur -> me.cur = 0; me.phase = NONE :: else fi;
  if :: me.cur == 0 && me.waiting ->    /* session/actor/turn_queue.py: TurnQueue._start_next */
        me.cur = (me.waiting & 2 -> 1 : (me.waiting & 4 -> 2 : 3));
        me.waiting = me.waiting & ~bit_of(me.cur); me.phase = ACCEPTED; write(rec(STARTED, me.cur))
     :: else fi }

/* ---- compaction, and changes of the history ---- */
inline snapshot() { me.jgen = S.gen; me.jver = S.ver; me.jn = S.n; me.jctx = S.ctx }
inline apply_if_ready() {       /* session/compacting/compactor.py: Compactor.apply_if_ready */
  if
  :: me.job == READY && stands -> me.job = PREPARING   /* session/compacting/compactor.py: Compactor._prepare_context */
  :: me.job == READY && !stands -> drop_job(); printf("owner %d discards the plan\n", o)
  :: else fi }
inline make_change() {  /* session/actor/history_commands.py: HistoryCommands._make */
  me.waiting_change = 0;
  if :: S.base == 0 -> me.promises--    /* session/actor/history_commands.py: HistoryCommands._check */
     :: else -> me.writing_change = 1; printf("owner %d rewinds\n", o); write(rec(REWOUND, 0));
        if :: me.job < WRITING -> drop_job() :: else fi   /* session/compacting/compactor.py: Compactor.cancel */
  fi }
#define may_compact (me.cur == 0 || me.phase == ACCEPTED || me.phase == TOOLS || BUG == COMPACT_WHILE_STREAMING)
inline after_each() {   /* session/actor/actor.py: Actor._read, session/actor/turn_runner.py: TurnRunner.may_compact */
  if :: me.waiting_change && me.runs == 0 -> make_change() :: else fi;
  if :: may_compact && !me.waiting_change && !me.writing_change && !unsettled -> apply_if_ready()
     :: else fi }

/* ---- what came back from the store ---- */
inline then_do(r) {
  if
  :: kind_of(r) <= STARTED ->
     if :: kind_of(r) <= QUEUED -> me.promises-- :: else fi;    /* session/actor/turn_queue.py: TurnQueue._answer_send */
     if :: kind_of(r) != QUEUED && me.phase == ACCEPTED -> me.phase = BUILDING :: else fi   /* session/actor/turn_runner.py: TurnRunner.start */
  :: kind_of(r) == CALLS || kind_of(r) == STEP ->
     if :: me.phase == JOURNALING -> me.phase = (kind_of(r) == CALLS -> TOOLS : BUILDING) :: else fi
  :: kind_of(r) == COMMITTED || kind_of(r) == ABORTED -> turn_ended(of(r))
  :: kind_of(r) == COMPACTED -> drop_job()
  :: kind_of(r) == CONFIGURED -> me.configuring = 0; me.promises--
  :: kind_of(r) == REWOUND -> me.writing_change = 0; me.promises--
  :: else fi }
inline read_back() {    /* session/actor/actor.py: Actor._written */
  each(k, 0, me.sent) take_in(me.q[k]); if :: living -> then_do(me.q[k]) :: else fi; done(k);
  each(k, 0, 8) me.q[k] = (k + me.sent < 8 -> me.q[k + me.sent] : 0); done(k);
  me.qn = me.qn - me.sent; me.sent = 0; me.answer = 0 }
inline gone() {         /* session/actor/actor.py: Actor._give_up */
  me.standing = COLD; me.epoch = 0; me.taken = 0; me.sent = 0; me.answer = 0; me.qn = 0;
  each(k, 0, 8) me.q[k] = 0; done(k);
  each(k, 0, 4) me.came[k] = 0; done(k);
  each(k, 0, INTERRUPTS) if :: stage[k] && stage[k] < ANSWERED && whose[k] == o -> stage[k] = ANSWERED; waits[k] = 0; aborts[k] = 0; mark[k] = 0; whose[k] = 0 :: else fi; done(k);
  me.ingress = 0; me.mark = 0; me.sends = 0; me.rewinds = 0; me.promises = 0; me.cur = 0; me.phase = NONE;
  me.runs = 0; me.waiting = 0; me.top = 0; me.late = 0; me.ghost = 0; me.waiting_change = 0; me.writing_change = 0; me.configuring = 0;
  drop_job(); S.head = 0; S.last = 0; S.open = 0; S.running = 0;
  S.n = 0; S.base = 0; S.gen = 0; S.ver = 0; S.covers = 0; S.calls = 0; S.ctx = 0 }
inline take(resumes) {  /* session/registry/loader.py: Loader.acquired, session/log/read_state.py: read_state */
  each(k, 1, head + 1) fold(log[k]); done(k);
  if
  :: head != me.taken -> gone()
  :: else -> limit = 0;                         /* session/actor/recovery.py: recovery_records */
     if :: resumes && S.running && BUG != NO_RECOVERY -> limit = S.running; write(rec(RESUMED, limit)) :: else fi;
     each(t, 1, SENDS + 1)
       if :: (S.open & bit_of(t)) && t != limit && BUG != NO_RECOVERY -> write(rec(ABORTED, t)) :: else fi;
     done(t);
     if :: me.qn -> me.standing = RECOVERING; me.sent = me.qn :: else -> resume() fi
  fi }
inline resume() {       /* session/actor/turn_queue.py: TurnQueue.resume */
  me.standing = LIVE; me.taken = 0; printf("owner %d is live in epoch %d\n", o, me.epoch);
  if :: S.running && BUG != NO_RECOVERY -> me.cur = S.running; me.runs = bit_of(me.cur);
        me.phase = (S.calls -> TOOLS : BUILDING)
     :: else fi }
inline in_log() {       /* session/log/reader.py: is_in_log */
  covered = (S.head + me.sent <= head);
  each(k, 0, covered * me.sent)
    covered = (covered && log[S.head + 1 + k] == me.q[k] && writer[S.head + 1 + k] == me.epoch);
  done(k) }

/* ---- the store ---- */
inline put(r) {
  promise(j == head, "BROKEN no two epochs write one position\n");
  j++; head = j; log[j] = r; writer[j] = me.epoch;
  promise(writer[j - 1] <= writer[j], "BROKEN epochs never decrease along the log\n");
  if
  :: kind_of(r) <= QUEUED -> promise(!(accepted & bit_of(of(r))), "BROKEN TurnIds are never reused\n");
     accepted = accepted | bit_of(of(r))
  :: kind_of(r) == COMMITTED || kind_of(r) == ABORTED ->
     promise((accepted & ~ended) & bit_of(of(r)), "BROKEN at most one terminal event per accepted turn\n");
     ended = ended | bit_of(of(r)); if :: kind_of(r) == ABORTED -> dropped = dropped | bit_of(of(r)) :: else fi
  :: kind_of(r) >= COMPACTED
  :: else -> promise((accepted & ~ended) & bit_of(of(r)), "BROKEN nothing of a turn comes after its end\n")
  fi }
inline append() {       /* store/memory.py: MemoryStore.append, store/sqlite/appends.py: append_all */
  if
  :: (epoch == me.epoch && head == S.head) || BUG == NO_FENCE ->
     j = S.head; each(i, 0, me.sent) put(me.q[i]); done(i);
     printf("the store has %d records, the last of owner %d in epoch %d\n", head, o, me.epoch);
     me.answer = APPENDED
  :: else -> me.answer = CONFLICT; printf("the store refuses the batch of owner %d\n", o)
  fi }

proctype Actor(bit o) {
end: do
  /* the store, and the way of its answer */
  :: d_step { me.sent && !me.answer -> append() }      /* store/sqlite/writer.py: SqliteWriter.append */
  :: d_step { me.sent && !me.answer && losses -> losses--; me.answer = LOST; printf("a batch of owner %d is lost\n", o) }
  :: d_step { me.answer == APPENDED && losses -> losses--; me.answer = LOST; printf("the answer is lost\n") }
  :: d_step { me.answer == APPENDED && losses -> losses--; me.answer = CONFLICT; printf("the answer is lost; asked again, it was\n") }
  /* what came back */
  :: d_step { living && me.answer == APPENDED -> read_back(); after_each() }
  :: d_step { living && me.answer == CONFLICT && epoch > me.epoch ->   /* session/actor/turn_queue.py: TurnQueue.abandon */
       if :: BUG == CONFLICT_IS_SUCCESS -> me.answer = APPENDED
          :: else -> printf("owner %d has been fenced\n", o); gone() fi }
  :: d_step { living && me.answer == CONFLICT && epoch == me.epoch ->   /* session/actor/actor.py: Actor._look_for */
       in_log(); if :: covered -> me.answer = APPENDED :: else -> gone() fi }
  :: d_step { living && me.answer == LOST -> printf("owner %d goes cold\n", o); gone() }
  :: d_step { living && me.qn && !me.sent && !me.mark && !readable ->   /* session/log/journal.py: Journal.flush */
       me.sent = me.qn }
  :: d_step { living && me.mark ->                      /* session/actor/actor.py: Actor._interrupt */
       limit = (BUG == MARK_WHEN_READ -> me.ingress + 1 : me.mark); me.mark = 0;
       printf("owner %d reads the interrupt\n", o);
       each(i, 1, limit)                                /* session/actor/mailbox.py: Mailbox.take_work */
         if :: me.sends & bit_of(i) -> me.sends = me.sends & ~bit_of(i); accept(i) :: else fi;
       done(i);
       interrupt_all();
       each(i, 0, INTERRUPTS)
         if :: stage[i] == UNREAD && whose[i] == o -> stage[i] = PENDING; waits[i] = covered; aborts[i] = covered
            :: else fi;
       done(i);
       answer_interrupts(); after_each() }
  :: d_step { living && readable ->                     /* session/actor/actor.py: Actor._command */
       i = 1; do :: (me.sends | me.rewinds) & bit_of(i) -> break :: else -> i++ od;
       if :: me.sends & bit_of(i) -> me.sends = me.sends & ~bit_of(i); accept(i)
          :: else -> me.rewinds = me.rewinds & ~bit_of(i);      /* session/actor/history_commands.py: HistoryCommands.begin */
             if :: me.runs == 0 -> make_change() :: else -> me.waiting_change = i; limit = i; interrupt_all() fi fi;
       after_each() }
  :: d_step { living && to_configure && me.cur == 0 && readable == 0 && !me.mark && !me.writing_change ->  /* session/actor/configuration.py: Configuration.configure */
       to_configure--; me.promises++; me.configuring = 1; printf("owner %d gets another system text\n", o);
       write(rec(CONFIGURED, 0)); if :: me.job == PREPARING && unsettled -> drop_job() :: else fi; after_each() }
  :: d_step { living && me.phase == BUILDING && me.job < PREPARING ->   /* session/actor/request_build.py: RequestBuild.begin */
       apply_if_ready();
       if :: me.job < PREPARING -> me.phase = STREAMING; printf("owner %d asks the model for turn %d\n", o, me.cur)
          :: else fi }
  :: d_step { living && me.phase == STREAMING ->        /* session/actor/turn_runner.py: TurnRunner._replied */
       me.phase = COMMITTING; printf("the reply is whole: commit turn %d\n", me.cur);
       write(rec(COMMITTED, me.cur)); after_each() }
  :: d_step { living && me.phase == STREAMING && steps ->       /* session/actor/turn_runner.py: TurnRunner._journal_calls */
       steps--; me.phase = JOURNALING; printf("the reply asks for tools\n"); write(rec(CALLS, me.cur)); after_each() }
  :: d_step { living && me.phase == TOOLS ->            /* session/actor/turn_runner.py: TurnRunner._journal_step */
       me.phase = JOURNALING; write(rec(STEP, me.cur)); after_each() }
  :: d_step { living && me.phase == STOPPING ->         /* session/actor/turn_runner.py: TurnRunner._stopped */
       abort(me.cur); after_each() }
  :: d_step { living && me.phase == STOPPING && ghosts ->    /* session/actor/turn_works.py: RunWorks.stop */
       ghosts--; me.ghost = me.cur; printf("the work of turn %d does not stop\n", me.cur); abort(me.cur); after_each() }
  :: d_step { living && me.ghost ->                     /* turns/machine.py: is_late */
       if :: BUG == NO_TAGS && me.phase == STREAMING -> printf("what turn %d left reports\n", me.ghost);
             promise(me.ghost == me.cur, "BROKEN nothing of a turn comes after its end\n")
          :: else fi; me.ghost = 0 }
  :: d_step { living && me.job == NONE && plans && S.n ->       /* session/compacting/compactor.py: Compactor._make_plan */
       plans--; snapshot(); me.job = PLANNING; printf("owner %d plans on %d messages\n", o, S.n) }
  :: d_step { living && me.job == PLANNING ->           /* session/compacting/compactor.py: Compactor._event_for_plan */
       me.job = READY; printf("the plan is ready\n"); after_each() }
  :: d_step { living && me.job == PREPARING ->          /* session/compacting/compactor.py: Compactor._context_prepared */
       if :: stands -> me.job = WRITING; write(rec(COMPACTED, me.jn)) :: else -> drop_job() fi; after_each() }
  :: d_step { me.standing == COLD && (wanted || takeovers) ->   /* store/memory.py: MemoryStore.acquire */
       if :: wanted :: else -> takeovers-- fi;
       epoch++; me.epoch = epoch; me.taken = head; holder = o; me.standing = TAKING;
       printf("owner %d takes the session: epoch %d\n", o, epoch) }
  :: d_step { me.standing == TAKING -> take(false) }
  :: d_step { me.standing == TAKING && accepted != ended -> take(true) }
  :: d_step { me.standing == RECOVERING && me.answer -> /* session/registry/loader.py: Loader.write */
       in_log();
       if :: me.answer == APPENDED || (me.answer == CONFLICT && epoch == me.epoch && covered) -> read_back(); resume()
          :: else -> gone() fi }
  /* callers, and the fate of a process */
  :: d_step { living && to_send ->                      /* session/handles/session.py: LLMSession.send */
       to_send--; me.promises++; me.ingress++; me.sends = me.sends | bit_of(me.ingress);
       printf("a caller of owner %d sends: send %d\n", o, me.ingress) }
  :: d_step { living && to_interrupt ->                 /* session/actor/actor.py: Actor.put_interrupt */
       to_interrupt--; me.promises++;
       if :: BUG != MARK_OFF_BY_ONE -> me.ingress++ :: else fi;
       me.mark = me.ingress; me.top = me.ingress;
       i = 0; do :: stage[i] -> i++ :: else -> break od;
       stage[i] = UNREAD; whose[i] = o; mark[i] = me.ingress + (BUG == MARK_OFF_BY_ONE);
       printf("a caller of owner %d interrupts: mark %d\n", o, me.ingress) }
  :: d_step { living && to_rewind ->                    /* session/handles/session.py: LLMSession.rewind */
       to_rewind--; me.promises++; me.ingress++; me.rewinds = me.rewinds | bit_of(me.ingress); me.top = me.ingress;
       printf("a caller of owner %d rewinds\n", o) }
  :: d_step { me.standing != COLD && crashes -> crashes--; printf("owner %d is killed\n", o); gone() }
  od }

proctype Rest() {       /* nothing can happen any more */
  timeout -> promise(accepted == ended, "BROKEN every accepted turn ends\n");
  promise(own[0].promises + own[1].promises == 0, "BROKEN every caller is answered\n") }

init { atomic { own[0].standing = LIVE; own[0].epoch = 1; run Actor(0); run Actor(1); run Rest() } }

#ifdef LTL
ltl the_first_turn_ends { [] ((accepted & 2) -> <> (ended & 2)) }
ltl the_second_turn_ends { [] ((accepted & 4) -> <> (ended & 4)) }
ltl every_caller_is_answered { [] <> (own[0].promises + own[1].promises == 0) }
ltl nothing_is_published_before_it_is_written { [] (own[0].s.head <= head && own[1].s.head <= head) }
#endif

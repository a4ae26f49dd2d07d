/* One session on two hosts of a cluster: the directory and its late views, leases, the takeover ladder,
 * what an owner does that may have lost the session, and hand-overs. What is left out, and why:
 * docs/contributing/model.md.
 *
 * As in session.pml a step is one atomic action and names what it stands for, and every run comes to
 * rest. There is no time: a lease may run out at any moment, but for its owner before it does for
 * others, because its clock drifts by less than the margin that it keeps.
 */
#ifndef SENDS
#define SENDS 2         /* at most 2: a turn, and one that waits */
#define STEPS 2         /* requests of the first turn */
#define CRASHES 1
#define SILENCES 2      /* reports of an observer that a host which lives is silent */
#define CUTS 1          /* of the connection to the store on which a host listens, or a release lost */
#define STOPS 1         /* of a host, as by SIGSTOP: its lease runs out although it is connected */
#define HANDOVERS 1
#define LATE 1          /* views that are read and arrive late */
#define STRAYS 1        /* a client leaves a host that lives, or another one asks elsewhere */
#define STAYS 1         /* does the client ask until its turns have ended? Else hosts recover them */
#define SUBSCRIBES 0    /* does the client subscribe? */
#endif
#ifndef BUG
#define BUG 0
#endif
#ifndef SCRATCH
#define SCRATCH hidden  /* not part of a state; a search by breadth cannot have that */
#endif
/* Bugs that can be put in, one at a time: see docs/contributing/model.md. */
#define NO_EPOCH_FENCE 1
#define EPOCH_KEPT_BY_TAKE 2
#define EPOCH_LOST_WITH_HOST 3
#define TRUSTED_TOO_LONG 4
#define NOTICE_IGNORED 5
#define CUT_OFF_UNASKED 6
#define ONE_WITNESS_DECIDES 7
#define VIEW_DECIDES 8
#define OLDER_VIEW_TAKEN 9
#define ROW_OUTLIVES_LEASE 10
#define SENT_ON_AGAIN 11
#define HANDED_OVER_IN_STEP 12
#define WAITING_DROPPED 13
#define RELEASE_TAKEN_FOR_SURE 14
#define TAKE_UNCOMPARED 15
#define LOG_READ_BEFORE_TAKE 16
#define RELEASE_UNCOMPARED 17
#define RELEASED_BEFORE_WRITTEN 18
#define REQUEST_UNASKED 19
#define PREVIEW_UNASKED 20
#define DEATH_NOTICE_IGNORED 21
#define RECOVERED_ONCE 22
#define MOVED_UNTOLD 23

#define NOBODY 2
#define other (1 - h)
#define bit_of(t) (1 << (t))
#define promise(holds, broken) if :: (holds) :: else -> printf(broken); assert(false) fi

/* The store: the session's row and what its log says, the leases, the rows of the hosts. */
byte epoch = 1, owner, accepted, ended, done_steps, members = 3;
bool handed, lease[2];
/* For checking: who took the session last, and with which epoch; how often the request of this step was made;
 * was the session given up as handed over, with nothing written since? */
byte taker, last = 1, asked;
bool moved;
/* The client: where it asks next, and whether a host sent it there. It waits until something changes. */
byte at, hops, refusals, to_send = SENDS;
bool was_sent, waits;
byte reader = NOBODY;   /* the host that it is subscribed at: session/core/subscriptions.py: Subscriptions */
bool unseen;            /* are there records that it has not seen? */
byte crashes = CRASHES, silences = SILENCES, cuts = CUTS, stops = STOPS, hand_overs = HANDOVERS, late = LATE,
     strays = STRAYS;
byte giver = NOBODY;    /* cluster/routing.py: Routing.hand_over_to */
SCRATCH byte target;

#define FRESH 1         /* a host has read the session's row, to take it if it has not changed meanwhile */
#define STALE 2         /* it has changed */

#define NEWER 1         /* a view that is on its way, beside the one that is known */
#define OLDER 2
typedef Host {
  bool up, trusts, asking, doubts, linked;      /* session/tasks/owner_lease.py: OwnerLease */
  bool live, streams, leaving;                  /* session/actor/actor.py: Actor */
  byte epoch;
  byte known, coming, coming_known;             /* cluster/placement.py: View */
  bool is_newest, is_coming_newest;
  byte looks, saw;                              /* store/postgres/owners.py: Owners.acquire */
  bool due;                                     /* for a bug alone: a host is gone */
  bool taken, declared;                         /* notices that are on their way */
  byte silent_to;                               /* cluster/ladder.py: Evidence */
  bool was_seen_to_end;
  bool lapsed, heard, behind                    /* for checking: what it must know */
};
Host host[2];
#define me host[h]
#define peer host[other]
#define open (accepted & ~ended)
#define lost (me.live && me.epoch < epoch)
#define valid (me.trusts && !me.asking)         /* session/tasks/owner_lease.py: OwnerLease.is_valid */
#define acting (me.up && me.live && !me.leaving)
#define follows (SUBSCRIBES && reader == NOBODY)
#define asks (to_send || (open && STAYS) || follows) && !waits && at == h && !me.looks
#define placed_here ((me.known & 1) -> h == 0 : (me.known == 0 || h == 1))    /* cluster/placement.py: host_of */
#define is_left (open && !(owner == other && lease[other]))
#define serves_elsewhere (taker == other && peer.live && lease[other])

inline changed() { waits = 0; hops = 0; refusals = 0; was_sent = 0 }
inline new_view() {     /* cluster/directory.py: Directory.refresh */
  host[0].is_newest = 0; host[1].is_newest = 0; host[0].is_coming_newest = 0; host[1].is_coming_newest = 0; changed() }
inline row_changed() { if :: peer.looks -> peer.looks = STALE :: else fi; changed() }
inline forget_coming() { me.coming = 0; me.coming_known = 0; me.is_coming_newest = 0 }
inline die() {
  stop(); me.up = 0; me.trusts = 0; me.asking = 0; me.doubts = 0; me.taken = 0; me.declared = 0; me.linked = 0;
  me.looks = 0; me.saw = 0; me.due = 0; me.known = 0; forget_coming();
  changed() }
inline see(view) {
  if :: BUG == RECOVERED_ONCE && (me.known & ~(view)) -> me.due = 1 :: else fi;
  me.known = view; changed() }
inline stop() {         /* a subscriber is told, or sees its connection break */
  me.live = 0; me.epoch = 0; me.streams = 0; me.leaving = 0; me.heard = 0; me.behind = 0;
  if :: reader == h && !(BUG == MOVED_UNTOLD && moved) -> reader = NOBODY :: else fi }
inline fence() { printf("host %d gives the session up\n", h); stop(); changed() }
inline may_act() {
  promise(!me.heard, "BROKEN an owner that heard of a take acts no more\n");
  promise(!me.behind, "BROKEN an owner that was cut off asks before it acts again\n") }
#define is_current (me.epoch == epoch || BUG == NO_EPOCH_FENCE)   /* does the store take a record? */
inline written() {      /* store/postgres/writer.py: Writer */
  promise(taker == h, "BROKEN no record is written behind a take\n"); handed = 0; moved = 0; unseen = SUBSCRIBES }
inline end_turn(which) {
  promise(!(ended & which), "BROKEN an accepted turn ends once\n"); ended = ended | which }
inline removed() {      /* cluster/directory.py: Directory.declare_dead */
  members = members & ~bit_of(h); me.silent_to = 0; new_view() }

inline look() {         /* store/postgres/owners.py: Owners.acquire */
  promise(!serves_elsewhere, "BROKEN a session is taken from nobody whose lease runs\n");
  me.looks = FRESH; if :: BUG == LOG_READ_BEFORE_TAKE -> me.saw = open :: else fi;
  printf("host %d may take the session\n", h) }
inline take() {         /* store/postgres/owners.py: Owners._take */
  promise(me.looks == FRESH || !serves_elsewhere, "BROKEN a session is taken from nobody whose lease runs\n");
  if :: BUG != EPOCH_KEPT_BY_TAKE -> epoch++ :: else fi;
  printf("host %d takes the session: epoch %d\n", h, epoch);
  promise(epoch > last, "BROKEN every take raises the epoch\n");
  if :: owner == other && peer.linked && peer.up -> peer.taken = 1 :: else fi;
  owner = h; taker = h; last = epoch; giver = NOBODY; me.live = 1; me.epoch = epoch; me.looks = 0; row_changed();
  /* session/actor/recovery.py: recovery_records. The first turn goes on, the one that waits does if
   * the session was handed over. */
  if :: BUG != LOG_READ_BEFORE_TAKE -> me.saw = open :: else fi;
  if :: handed && BUG != WAITING_DROPPED
     :: else -> asked = 0;
        if :: me.saw & 4 ->
              promise(!moved, "BROKEN a send that waits survives a hand-over\n");
              end_turn(4); unseen = SUBSCRIBES; printf("the turn that waits ends with the crash\n")
           :: else fi
  fi;
  me.saw = 0 }

inline send_on() {
  at = other; was_sent = 1; hops++; printf("host %d sends the client to host %d\n", h, at);
  promise(hops <= 2, "BROKEN a client is not sent to and fro\n") }
inline refuse() { at = other; was_sent = 0; hops = 0; refusals++; waits = (refusals > 2) }
inline place() {        /* cluster/placement.py: host_of */
  if :: giver == h && (me.known & bit_of(other)) -> target = other
     :: else -> target = (me.known & 1 -> 0 : (me.known & 2 -> 1 : NOBODY)) fi }

proctype Process(byte h) {
end: do
  /* the client, at this host */
  :: d_step { asks && !me.up ->                                 /* cluster/clients.py: ClusterLink */
       refuse() }
  :: d_step { asks && me.up && strays ->                        /* cluster/clients.py: ClusterLink */
       strays--; printf("the client leaves host %d\n", h); at = other; changed() }
  :: d_step { asks && me.up && !me.live ->                      /* cluster/routing.py: Routing.check */
       if :: giver == h && owner == h && was_sent && BUG != RELEASE_TAKEN_FOR_SURE -> giver = NOBODY :: else fi;
       place();
       if
       :: owner == other && (me.known & bit_of(other)) -> send_on()
       :: else ->
          if :: (!was_sent || giver == h || BUG == SENT_ON_AGAIN) && target == other -> send_on()
             :: else ->         /* store/ownership.py: still_holds */
                if :: !me.linked -> refuse()
                   :: me.linked && owner == other && lease[other] && BUG != VIEW_DECIDES -> refuse()
                   :: else -> look() fi fi fi }
  :: d_step { follows && at == h && acting ->                   /* session/core/subscriptions.py: Subscriptions */
       reader = h; printf("the client subscribes at host %d\n", h) }
  :: d_step { reader == h && unseen && me.live && me.epoch == epoch ->  /* session/core/subscriptions.py: Subscriptions.publish */
       unseen = 0 }
  /* a take, for the client or because a host is gone */
  :: d_step { me.up && me.linked && valid && lease[h] && !me.live && !me.looks && is_left && placed_here && (BUG != RECOVERED_ONCE || me.due) ->  /* session/unfinished.py: recover_unfinished */
       me.due = 0; look() }
  :: d_step { me.due && me.linked && !(is_left && placed_here && !me.live) -> me.due = 0 }
  :: d_step { me.up && me.looks && me.linked ->                 /* store/postgres/owners.py: Owners._take */
       if :: me.looks == FRESH || BUG == TAKE_UNCOMPARED -> take() :: else -> me.looks = 0; me.saw = 0 fi }
  :: d_step { to_send && at == h && acting ->                   /* session/actor/turn_queue.py: TurnQueue.send */
       if :: is_current -> written(); to_send--;
             accepted = accepted | bit_of(SENDS - to_send); printf("host %d accepts send %d\n", h, SENDS - to_send)
          :: else -> fence() fi }
  /* turns */
  :: d_step { acting && open && !me.streams && (valid || BUG == REQUEST_UNASKED) ->         /* session/core/reply_reader.py: read_reply */
       promise(!me.lapsed, "BROKEN no request begins after a lease was lost\n");
       may_act(); me.streams = 1; printf("host %d asks the model\n", h);
       if :: taker == h -> asked++; handed = 0; moved = 0;  /* the turn's start or resumption is in the log before */
             promise(asked <= 1, "BROKEN a hand-over between two steps repeats no request\n")
          :: else fi }
  :: d_step { acting && me.streams && (valid || BUG == PREVIEW_UNASKED) && (me.lapsed || me.heard || me.behind) ->  /* session/actor/turn_runner.py: TurnRunner.previews_so_far */
       promise(!me.lapsed, "BROKEN no preview is shown after a lease was lost\n");
       may_act() }
  :: d_step { acting && me.streams ->                           /* session/actor/turn_runner.py: TurnRunner._replied */
       me.streams = 0;
       if :: is_current -> written(); asked = 0; printf("host %d writes the step\n", h);
             if :: (open & 2) && done_steps + 1 < STEPS -> done_steps++
                :: (open & 2) && done_steps + 1 >= STEPS -> end_turn(2)
                :: else -> end_turn(4) fi
          :: else -> fence() fi }
  /* hand-over */
  :: d_step { acting && hand_overs && (!me.streams || BUG == HANDED_OVER_IN_STEP) ->   /* session/actor/actor.py: Actor._begin_hand_over */
       hand_overs--;
       if :: is_current -> written(); handed = (BUG != RELEASED_BEFORE_WRITTEN); me.leaving = 1; me.streams = 0; giver = h;
             printf("host %d hands over\n", h)
          :: else -> fence() fi }
  :: d_step { me.up && me.leaving ->                            /* session/actor/actor.py: Actor._release */
       printf("host %d releases the session\n", h); moved = (taker == h);
       if :: me.epoch == epoch || BUG == RELEASE_UNCOMPARED -> owner = NOBODY; row_changed() :: else -> changed() fi;
       stop() }
  :: d_step { me.up && me.leaving && cuts -> cuts--; printf("the release by host %d is lost\n", h);
       moved = (taker == h); stop(); changed() }
  /* leases */
  :: d_step { me.up && me.linked && (!me.trusts || !lease[h] || me.doubts) && !me.asking ->     /* store/held_leases.py: HeldLeases.renewed */
       me.behind = lost; me.asking = (BUG != CUT_OFF_UNASKED);
       lease[h] = 1; me.trusts = 1; me.doubts = 0; me.lapsed = 0;
       printf("host %d renews its lease\n", h);
       if :: !(members & bit_of(h)) -> members = members | bit_of(h); new_view() :: else fi }
  :: d_step { me.up && me.linked && me.asking ->                /* session/tasks/owner_lease.py: OwnerLease.missed */
       me.asking = 0; me.behind = 0; if :: lost -> fence() :: else fi }
  :: d_step { me.up && me.trusts && (!me.linked || stops) ->    /* store/held_leases.py: HeldLeases.is_valid */
       if :: me.linked -> stops-- :: else fi;
       me.trusts = 0; printf("host %d trusts its lease no more\n", h) }
  /* the takeover ladder */
  :: d_step { lease[h] && (!me.up || !me.trusts || (BUG == TRUSTED_TOO_LONG && !me.linked)) ->  /* cluster/directory.py: Directory.remove_ended */
       lease[h] = 0; me.lapsed = 1; printf("the lease of host %d runs out\n", h);
       if :: (members & bit_of(h)) && BUG != ROW_OUTLIVES_LEASE -> removed() :: else fi }
  :: d_step { (members & bit_of(h)) && me.was_seen_to_end ->    /* cluster/keeper.py: Keeper */
       printf("host %d was seen to end\n", h); lease[h] = 0; removed() }
  :: d_step { (members & bit_of(h)) && silences && me.silent_to < 2 ->         /* cluster/ladder.py: Silence */
       silences--; me.silent_to++; printf("host %d is silent to an observer\n", h) }
  :: d_step { (members & bit_of(h)) && me.silent_to >= (BUG == ONE_WITNESS_DECIDES -> 1 : 2) ->         /* cluster/ladder.py: why_dead */
       printf("host %d is declared dead\n", h);
       promise(me.silent_to == 2, "BROKEN one observer alone declares nobody dead\n");
       lease[h] = 0; if :: me.up && me.linked -> me.declared = 1 :: else fi;
       if :: BUG == EPOCH_LOST_WITH_HOST -> epoch = 0 :: else fi; removed() }
  /* notices */
  :: d_step { me.up && me.taken ->                              /* store/held_leases.py: HeldLeases.taken */
       me.taken = 0;
       if :: lost && BUG == NOTICE_IGNORED -> me.heard = 1
          :: lost && BUG != NOTICE_IGNORED -> fence()
          :: else fi }
  :: d_step { me.up && me.declared ->                           /* store/held_leases.py: HeldLeases.ended */
       me.declared = 0; me.lapsed = 1; if :: BUG != DEATH_NOTICE_IGNORED -> me.trusts = 0; me.doubts = 1 :: else fi }
  /* views */
  :: d_step { me.up && me.linked && !me.is_newest ->            /* cluster/directory.py: _Rows._read */
       see(members); me.is_newest = 1; if :: me.coming -> forget_coming(); me.coming = OLDER :: else fi }
  :: d_step { me.up && me.linked && !me.is_newest && !me.coming && late ->
       late--; me.coming = NEWER; me.coming_known = members; me.is_coming_newest = 1 }
  :: d_step { me.up && me.coming ->                             /* cluster/directory.py: _Rows._read */
       if :: me.coming == NEWER || BUG == OLDER_VIEW_TAKEN ->
             printf("a view reaches host %d late\n", h);
             promise(me.coming == NEWER, "BROKEN the view of a host never goes back\n");
             see(me.coming_known); me.is_newest = me.is_coming_newest
          :: else fi;
       forget_coming() }
  /* what happens to a host */
  :: d_step { me.up && crashes -> crashes--; printf("host %d is killed\n", h);
       die(); me.was_seen_to_end = 1 }
  :: d_step { me.up && crashes -> crashes--; printf("host %d is lost with its node\n", h);
       die() }
  :: d_step { me.up && me.linked && cuts -> cuts--; me.linked = 0; me.taken = 0; me.declared = 0;
       printf("host %d is cut off\n", h) }
  :: d_step { me.up && !me.linked -> me.linked = 1; me.doubts = 1; printf("host %d is connected again\n", h); changed() }
  od }

proctype Rest() {       /* nothing can happen any more */
  timeout -> promise(to_send == 0 && accepted == ended, "BROKEN every send is accepted and its turn ends\n");
  promise(!unseen, "BROKEN a subscriber sees every record in the end\n");
  promise((!host[0].up || host[0].is_newest) && (!host[1].up || host[1].is_newest), "BROKEN every host knows the newest view in the end\n") }

init { atomic {
  host[0].up = 1; host[0].trusts = 1; host[0].linked = 1; host[0].known = 3; host[0].is_newest = 1; lease[0] = 1;
  host[1].up = 1; host[1].trusts = 1; host[1].linked = 1; host[1].known = 3; host[1].is_newest = 1; lease[1] = 1;
  host[0].live = 1; host[0].epoch = 1;
  run Process(0); run Process(1); run Rest() } }

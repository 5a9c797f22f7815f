/*
 * The windows of worker numbers, for the model checker spin: section 8 of the
 * design. README.md beside it goes through it; march.pml is the model of segments.
 *
 * One worker number, two rooms, a few instances, a few ticks. A set of ticks is kept
 * as bits (bit k: tick k). Numbers have nothing in common but the epoch, so one is
 * enough. Its slice is all that it needs of a layout: the room that may take it. Each
 * room has a key of the number, which its instances and recover alone write.
 *
 * What is one step: a transaction of etcd, and what one process does by itself
 * between two of them. All else interleaves. A window's transaction and what its
 * instance makes of the answer are two steps.
 *
 * MUTANT_... breaks the protocol in one place, LIMIT_... takes away something
 * that it assumes. Each must make an assertion fail.
 */

#ifndef INSTANCES
#define INSTANCES 2	/* instance i serves room i % 2, or room a with ROOM_MATES */
#endif
#ifndef TICKS
#define TICKS 4		/* 15 at most */
#endif
#ifndef CHANGES
#define CHANGES 0	/* of the layout, in all lives of the store together */
#endif
#ifndef LATE
#define LATE 0		/* requests that arrive after their sender gave up, also after a restore */
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef RUNS
#define RUNS RESTORES	/* of recover, of which each may break off */
#endif
#ifndef FORGETS
#define FORGETS 0	/* registrations removed by an operator */
#endif
/*
 * Other switches:
 * ROOM_MATES   all instances serve room a
 * STOPS        instances stop in good order, too
 * NO_KILLS     no instance is killed
 * LOST_JOURNAL an instance may be killed once and start again without its journal
 * EARLY        the backup is of the start, and no recover runs before it is restored
 * UPGRADE      the cluster begins with one key for all rooms, and a layout turns the keys by room on
 * HOSTILE      a process with the rights of room b writes anything into its key, at any time; all
 *              instances serve room a
 * TIMES=n      clocks show the time, give or take AHEAD, and the time goes up to n.
 *              Recover may then go on without instances. Without TIMES a clock shows
 *              anything, at any time.
 */
#ifdef TIMES
#ifndef AHEAD
#define AHEAD 1		/* max_ahead: how far a clock may be from the time */
#endif
#ifndef LONGEST
#define LONGEST 2	/* window, from the clock of the instance that takes it */
#endif
#else
#define AHEAD 0
#endif

#define A 0
#define B 1
#define NO_ROOM 2
#ifdef HOSTILE
#define ROOM_MATES
#endif
#ifdef ROOM_MATES
#define ROOM(i) A
#else
#define ROOM(i) ((i) % 2)
#endif
#define BIT(n) (1 << (n))
#define MAX(x, y) ((x) > (y) -> (x) : (y))
#define MIN(x, y) ((x) < (y) -> (x) : (y))
#define RANGE(from, until) ((BIT(until) - 1) & ~(BIT(from) - 1))

/* The keys of the number: one of each room, and the one that all wrote before. */
#ifdef UPGRADE
#define KEYS 3
#define KEY(i) (etcd.upgraded -> ROOM(i) : 2)
#else
#define KEY(i) ROOM(i)
#if defined(ROOM_MATES) && !defined(HOSTILE)
#define KEYS 1
#else
#define KEYS 2
#endif
#endif

/* An incarnation is that of an instance which lives, or one before it: no two
 * that are dead need to be told apart. 0 is none. */
#define LIVING(i) ((i) + 1)
#define DEAD(i) ((i) + 1 + INSTANCES)

/* A stamp is (epoch, mod revision of the layout); 0 is none. */
#define STAMP(epoch, revision) ((epoch) * 16 + (revision))
#define EPOCH(stamp) ((stamp) / 16)
#define REVISION(stamp) ((stamp) % 16)

/* What etcd holds, and a restore takes back. */
typedef Store {
	byte epoch;		/* in force, or stopped by a halt; counts over all lives */
	byte halted;		/* 0, or the nonce of the halt */
	byte revision;		/* mod revision of the layout */
	byte slice;		/* the room whose slice has the number */
	byte registered;	/* instances, as bits */
	byte owner[KEYS];	/* the number's keys: an incarnation, 0 where there is no key, */
	byte from[KEYS];	/* and its window, */
	byte until[KEYS];
	byte wrote[KEYS];	/* the epoch of its stamp, */
	byte freeOf[KEYS]	/* and the not_before that it is free of */
#ifdef UPGRADE
	;
	bit upgraded
#endif
}
Store etcd;
#define NOW STAMP(etcd.epoch, etcd.revision)

/* What an epoch says. It never changes, and no two epochs are the same. */
#define EPOCHS (RUNS + 2)
byte notBefore[EPOCHS];
byte epochs;			/* ever made, in all lives: a random one is one more */

/* What an instance knows. */
mtype = { reading, knowing, answered };
typedef Instance {
	/* reading: the key is unknown; knowing: known; answered: the key has a window
	 * of this incarnation, and the answer that says so is under way */
	mtype at;
	byte stamp;		/* epoch and layout, 0 for none; of the layout: */
	bit mine;		/* its room's slice has the number */
	byte owner;		/* its room's key as known, */
	byte until;
	bit free;		/* which says that the number is free of not_before; */
#if KEYS > 1
	byte others;		/* the latest end in all other keys */
#endif
	byte answerFrom;	/* the window in the answer */
	byte answerUntil;
	byte from;		/* its window; until 0: it has none */
	byte end;
#if CHANGES
	bit reported;		/* that it serves the layout of stamp */
#endif
#ifdef STOPS
	byte used;		/* one above the last tick that it issued */
#endif
#if RUNS
	byte told;		/* journal: the latest end of a window that it accepted */
	byte seen;		/* journal: the latest epoch that it was in */
	byte barred;		/* nonce of the halt for which it accepted recover's barrier */
	bit fresh;		/* this incarnation accepted no barrier */
#ifdef LOST_JOURNAL
	byte gap		/* the latest epoch of which an incarnation before had a journal that is lost */
#endif
#endif
}
Instance in[INSTANCES];

/* The oracle: ticks that each living incarnation issued, and all dead ones, as bits. */
short issued[INSTANCES];
short buried;

#if LATE
/* A request that its sender gave up; until is 0 where there is none. */
typedef Request { byte by; byte stamp; byte owner; byte end; byte from; byte until; bit lowers }
Request late;
#endif

#define copyKey(source, to, n) \
	to.owner[n] = source.owner[n]; to.from[n] = source.from[n]; to.until[n] = source.until[n]; \
	to.wrote[n] = source.wrote[n]; to.freeOf[n] = source.freeOf[n]
#if KEYS == 1
#define copyKeys(source, to) copyKey(source, to, 0)
#define LATEST etcd.until[0]
#elif KEYS == 2
#define copyKeys(source, to) copyKey(source, to, 0); copyKey(source, to, 1)
#define LATEST MAX(etcd.until[0], etcd.until[1])
#else
#define copyKeys(source, to) \
	copyKey(source, to, 0); copyKey(source, to, 1); copyKey(source, to, 2); to.upgraded = source.upgraded
#define LATEST MAX(etcd.until[0], MAX(etcd.until[1], etcd.until[2]))
#endif
#define copy(source, to) \
	to.epoch = source.epoch; to.halted = source.halted; to.revision = source.revision; \
	to.slice = source.slice; to.registered = source.registered; copyKeys(source, to)

#if RESTORES
Store backup;			/* epoch 0: none was taken */
byte restores;
bit behind;			/* the raft index is below the beat's */
#define LIFE restores
#else
#define LIFE 0
#endif

#if RUNS
byte runs;			/* of recover, ever */
/* What the answers to recover's question say: each room's latest window, */
#if KEYS == 1
#define ROOMS 1
#else
#define ROOMS 2
#endif
byte tellOwner[ROOMS], tellFrom[ROOMS], tellUntil[ROOMS];
byte goesOn;			/* and the incarnation that goes on in the latest one of those that answered themselves */
byte running;			/* and when that ends */
#endif
#ifdef TIMES
byte time;
#endif
byte changes, forgets;

/* Scratch, which is 0 between steps. */
byte clock, first, after, k, low, high;
bit ok;

inline clean() {
	d_step { clock = 0; first = 0; after = 0; k = 0; low = 0; high = 0; ok = 0 }
}

/* A look at a clock. */
inline look(ahead) {
#ifdef TIMES
	low = time - AHEAD; high = MIN(time + ahead, TICKS - 1);
#else
	low = 0; high = TICKS - 1;
#endif
	select(clock : low .. high)
}
#ifdef TIMES
#define LAST (clock + LONGEST)	/* the latest end of a window that is taken now */
#else
#define LAST TICKS
#endif

#ifdef LIMIT_CLOCK_AHEAD
#define INSTANCE_AHEAD (AHEAD + 1)
#else
#define INSTANCE_AHEAD AHEAD
#endif

#ifdef MUTANT_WINDOW_NO_LAYOUT
#define SAME_LAYOUT(known) true
#else
#define SAME_LAYOUT(known) (etcd.revision == REVISION(known))
#endif
#ifdef MUTANT_WINDOW_NO_EPOCH
#define SAME_EPOCH(known) true
#else
#define SAME_EPOCH(known) (etcd.epoch == EPOCH(known) && !etcd.halted)
#endif
#define REGISTERED(i) ((etcd.registered / BIT(i)) % 2)
#ifdef MUTANT_WINDOW_NO_REGISTRATION
#define STILL_REGISTERED(i) true
#else
#define STILL_REGISTERED(i) REGISTERED(i)
#endif
#ifdef MUTANT_WINDOW_NO_KEY
#define SAME_KEY(i, owner0, until0) true
#else
#define SAME_KEY(i, owner0, until0) (etcd.owner[KEY(i)] == owner0 && etcd.until[KEY(i)] == until0)
#endif

/* The conditions of a window's transaction that is sent by i. */
inline compare(i, known, owner0, until0) {
	ok = SAME_EPOCH(known) && SAME_LAYOUT(known) && STILL_REGISTERED(i) && SAME_KEY(i, owner0, until0)
}

/* It is done. A number is taken from its slice only. */
inline write(i, holder, known, from0, until0) {
	assert(etcd.slice == ROOM(i)); /* in the slice */
	etcd.owner[KEY(i)] = holder; etcd.from[KEY(i)] = from0; etcd.until[KEY(i)] = until0;
	etcd.wrote[KEY(i)] = EPOCH(known); etcd.freeOf[KEY(i)] = notBefore[EPOCH(known)]
}

/* The look at the beat comes before each window, and each look at a key, over a new
 * connection; and a restore ends all connections. */
#if RESTORES && !defined(LIMIT_WINDOW_UNSEEN_RESTORE)
#define CHECKED (!behind)
#else
#define CHECKED true
#endif
#if RUNS
#define MAY_TAKE(i) (CHECKED && !in[i].barred)
#ifdef MUTANT_READ_BACK_UNCHECKED
#define MAY_MEET(i) (!(in[i].barred && etcd.epoch <= in[i].seen))
#else
#define MAY_MEET(i) (CHECKED && !(in[i].barred && etcd.epoch <= in[i].seen))
#endif
#else
#define MAY_TAKE(i) true
#define MAY_MEET(i) true
#endif

/* A window is the own one where the key names the own incarnation, and its stamp the
 * epoch in force. */
#ifdef MUTANT_INSTANCE_IS_ENOUGH
#define OWN_IN(i, n) (etcd.owner[n] == LIVING(i) || etcd.owner[n] == DEAD(i))
#else
#if defined(MUTANT_READ_BACK_OLD) || defined(MUTANT_WINDOW_NO_EPOCH)
#define OWN_IN(i, n) (etcd.owner[n] == LIVING(i))
#else
#define OWN_IN(i, n) (etcd.owner[n] == LIVING(i) && etcd.wrote[n] == etcd.epoch)
#endif
#endif

/* Its window is in its room's key, or in the key of before while its room has none. */
#if defined(MUTANT_OWN_IN_ANY_KEY)
#define SHOWN(i) (OWN_IN(i, KEY(i)) -> KEY(i) : (OWN_IN(i, B) -> B : KEY(i)))
#elif defined(UPGRADE)
#define SHOWN(i) (etcd.owner[KEY(i)] == 0 && OWN_IN(i, 2) -> 2 : KEY(i))
#else
#define SHOWN(i) KEY(i)
#endif
#define OWN(i) OWN_IN(i, SHOWN(i))

/* The end in another key, but in one that has the own window, too. */
#ifdef MUTANT_OWN_KEY_ONLY
#define OTHER(i, n) 0
#else
#define OTHER(i, n) (n == KEY(i) || OWN(i) && etcd.owner[n] == LIVING(i) && etcd.from[n] == etcd.from[SHOWN(i)] -> 0 : \
	etcd.until[n])
#endif
#if KEYS == 1
#define OTHERS(i) 0
#elif KEYS == 2
#define OTHERS(i) MAX(OTHER(i, 0), OTHER(i, 1))
#else
#define OTHERS(i) MAX(OTHER(i, 0), MAX(OTHER(i, 1), OTHER(i, 2)))
#endif

/* The number need not wait for not_before: a put under the epoch said so, or recover. */
#ifdef MUTANT_FREE_BY_ANY_ROOM
#define FREE(i) (etcd.freeOf[A] == notBefore[etcd.epoch] || etcd.freeOf[B] == notBefore[etcd.epoch])
#else
#define FREE(i) (etcd.freeOf[KEY(i)] == notBefore[etcd.epoch])
#endif

/* It sees the key: a window of its own that it did not have is in the answer. */
inline learnKey(i) {
	in[i].owner = etcd.owner[KEY(i)]; in[i].until = etcd.until[KEY(i)]; in[i].free = FREE(i);
#if KEYS > 1
	in[i].others = OTHERS(i);
#endif
	if
	:: OWN(i) && in[i].mine && (in[i].end != etcd.until[SHOWN(i)] || in[i].from != etcd.from[SHOWN(i)]) ->
		in[i].at = answered; in[i].answerFrom = etcd.from[SHOWN(i)]; in[i].answerUntil = etcd.until[SHOWN(i)]
	:: else -> in[i].at = knowing; in[i].answerFrom = 0; in[i].answerUntil = 0
	fi
}

/* It forgets the key: the outcome of its last try is unknown. */
inline forgetKey(i) {
	in[i].at = reading;
#if KEYS > 1
	in[i].others = 0;
#endif
	in[i].owner = 0; in[i].until = 0; in[i].free = 0; in[i].answerFrom = 0; in[i].answerUntil = 0
}

#define bury(x, i) if :: x == LIVING(i) -> x = DEAD(i) :: else fi

#if KEYS == 1
#define buryKeys(store, i) bury(store.owner[0], i)
#elif KEYS == 2
#define buryKeys(store, i) bury(store.owner[0], i); bury(store.owner[1], i)
#else
#define buryKeys(store, i) bury(store.owner[0], i); bury(store.owner[1], i); bury(store.owner[2], i)
#endif

/* Its incarnation ends, and another begins. */
inline die(i) {
	forgetKey(i);
	in[i].stamp = 0; in[i].mine = 0; in[i].from = 0; in[i].end = 0;
#if CHANGES
	in[i].reported = 0;
#endif
#ifdef STOPS
	in[i].used = 0;
#endif
	buried = buried | issued[i]; issued[i] = 0;
	buryKeys(etcd, i);
	k = 0;
	do
	:: k < INSTANCES -> bury(in[k].owner, i); k++
	:: else -> break
	od;
	k = 0;
#if LATE
	bury(late.by, i);
	bury(late.owner, i);
#endif
#if RESTORES
	buryKeys(backup, i);
#endif
#if RUNS
	bury(tellOwner[0], i);
#if ROOMS > 1
	bury(tellOwner[1], i);
#endif
	in[i].barred = 0; in[i].fresh = 1
#endif
}

inline issue(i, ticks) {
	k = 0; first = 0;
	do
	:: k < INSTANCES ->
		if
		:: k != i && (issued[k] & (ticks)) -> first = 1
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0;
	if
	:: first || (buried & (ticks)) ->
		printf("%c%d: issues ticks %x, of which another incarnation issued some\n", 97 + ROOM(i), i, ticks)
	:: else -> printf("%c%d: issues ticks %x\n", 97 + ROOM(i), i, ticks)
	fi;
	assert(!first && !(buried & (ticks))); /* no tick by two incarnations */
#if CHANGES
	assert(in[i].mine || !in[i].reported); /* none out of the slice after the report */
#endif
	issued[i] = issued[i] | (ticks)
}

/* It goes on: nobody had the number since its own window began. */
#ifdef UPGRADE
#define KNOWN_OWN(i) (in[i].owner == 0 || in[i].owner == LIVING(i) && in[i].until == in[i].end)
#else
#define KNOWN_OWN(i) (in[i].owner == LIVING(i) && in[i].until == in[i].end)
#endif
#if KEYS == 1 || defined(MUTANT_GOES_ON_OVER_OTHERS)
#define GOES_ON(i) (in[i].end && KNOWN_OWN(i))
#else
#define GOES_ON(i) (in[i].end && KNOWN_OWN(i) && in[i].others <= in[i].from)
#endif

/* Instance i. It may stand still at any point for as long as it likes, and go
 * on: that is an interleaving. */
proctype instance(byte i) {
	do
	/* It learns epoch, layout and key in one snapshot. So an unknown outcome is read
	 * back, too. */
	:: d_step {
		!etcd.halted && MAY_MEET(i) && (in[i].at == reading || in[i].at == knowing && in[i].stamp != NOW) ->
#if CHANGES
		in[i].reported = (in[i].stamp == NOW -> in[i].reported : 0);
#endif
		in[i].stamp = NOW;
		in[i].mine = (etcd.slice == ROOM(i));
#if RUNS
		in[i].barred = 0;
		in[i].seen = MAX(in[i].seen, etcd.epoch);
#endif
		learnKey(i);
		printf("%c%d: learns epoch %d, layout %d, its key: incarnation %d, until %d\n", 97 + ROOM(i), i,
			etcd.epoch, etcd.revision, in[i].owner, in[i].until)
	}
#if CHANGES
	/* It hears of a layout while an answer is under way. */
	:: d_step {
		!etcd.halted && MAY_MEET(i) && in[i].at == answered && EPOCH(in[i].stamp) == etcd.epoch && in[i].stamp != NOW ->
		in[i].stamp = NOW; in[i].mine = (etcd.slice == ROOM(i)); in[i].reported = 0
	}
	/* It reports that it serves the layout: before that it gives up a number that is out of its
	 * slice, and takes no answer any more that brings it. */
	:: d_step {
		in[i].stamp && !in[i].reported ->
		if
		:: !in[i].mine ->
			in[i].from = 0; in[i].end = 0;
#ifndef MUTANT_REPORTS_BEFORE_ANSWER
			forgetKey(i)
#endif
		:: else
		fi;
		in[i].reported = 1;
		printf("%c%d: reports layout %d\n", 97 + ROOM(i), i, REVISION(in[i].stamp))
	}
#endif
	/* It takes or renews a window, and etcd decides. */
	:: atomic {
		in[i].at == knowing && in[i].mine && MAY_TAKE(i) ->
		look(INSTANCE_AHEAD);
#ifdef MUTANT_NO_NOT_BEFORE
		low = 0;
#else
		low = (in[i].free -> 0 : notBefore[EPOCH(in[i].stamp)]);
#endif
		if
		:: GOES_ON(i) && in[i].end >= low ->
			/* the same incarnation goes on, from the end of what it has */
			first = in[i].from; low = in[i].end; ok = 1
		:: else ->
			/* a new owner, or one that has to leave a gap */
#ifdef MUTANT_FROM_BELOW_UNTIL
			low = MAX(clock, low);
#else
			low = MAX(MAX(clock, low), in[i].until);
#if KEYS > 1
			low = MAX(low, in[i].others);
#endif
#ifdef UPGRADE
			low = MAX(low, in[i].end); /* which may stand in the key of before */
#endif
#endif
			first = low;
#if defined(TIMES) && !defined(MUTANT_STACKED)
			ok = (low <= clock) /* it waits until the window of another is over, by its own clock */
#else
			ok = 1
#endif
		fi;
#ifdef MUTANT_STACKED
		high = MIN(low + LONGEST, TICKS);
#else
		high = MIN(LAST, TICKS);
#endif
		ok = ok && low < high;
		if
		:: !ok -> goto none
		:: else
		fi;
		low = low + 1;
		select(after : low .. high);
		compare(i, in[i].stamp, in[i].owner, in[i].until);
		if
		:: ok -> /* done; the answer is under way */
			write(i, LIVING(i), in[i].stamp, first, after);
			in[i].at = answered; in[i].answerFrom = first; in[i].answerUntil = after;
			in[i].owner = 0; in[i].until = 0;
			printf("%c%d: takes [%d, %d)\n", 97 + ROOM(i), i, first, after)
		:: ok -> /* done; the answer is lost */
			write(i, LIVING(i), in[i].stamp, first, after);
			forgetKey(i);
			printf("%c%d: takes [%d, %d); the answer is lost\n", 97 + ROOM(i), i, first, after)
		:: !ok -> /* refused, or lost on the way */
			forgetKey(i);
			printf("%c%d: is refused [%d, %d)\n", 97 + ROOM(i), i, first, after)
#if LATE
		:: !late.until -> /* it is under way when its sender gives up */
			late.by = LIVING(i); late.stamp = in[i].stamp; late.owner = in[i].owner; late.end = in[i].until;
			late.from = first; late.until = after;
			forgetKey(i);
			printf("%c%d: asks for [%d, %d), which is under way; it gives up\n", 97 + ROOM(i), i, first, after)
#endif
#ifdef MUTANT_WINDOW_UNKNOWN_IS_SUCCESS
		:: true ->
			in[i].at = answered; in[i].answerFrom = first; in[i].answerUntil = after;
			in[i].owner = 0; in[i].until = 0;
			printf("%c%d: takes [%d, %d) for its own, of which it heard nothing\n", 97 + ROOM(i), i, first, after)
#endif
		fi;
none:		clean()
	}
	/* It takes the answer; or never does. Where instances do not stop in good order it
	 * issues all ticks at once: one that is issued later, or never, collides with no
	 * more than that. */
	:: atomic {
		in[i].at == answered ->
		in[i].from = in[i].answerFrom; in[i].end = in[i].answerUntil;
#ifndef STOPS
		issue(i, RANGE(in[i].from, in[i].end));
#endif
#if RUNS
		in[i].told = MAX(in[i].told, in[i].end);
#endif
#if KEYS > 1
		forgetKey(i); /* it reads all keys before it puts its own again */
#else
		in[i].owner = LIVING(i); in[i].until = in[i].end; in[i].free = 1;
		in[i].answerFrom = 0; in[i].answerUntil = 0;
		in[i].at = knowing;
#endif
		clean()
	}
#ifdef MUTANT_NO_WINDOW_CHECK
	/* It issues what its clock shows, long after its window. */
	:: atomic { in[i].end -> select(clock : 0 .. TICKS - 1); issue(i, BIT(clock)); clean() }
#endif
#ifdef STOPS
	/* It issues any tick of its window; with all before it, which collide with no less. */
	:: atomic {
		in[i].end && in[i].used < in[i].end ->
		low = MAX(in[i].used, in[i].from); high = in[i].end - 1;
		select(clock : low .. high);
		issue(i, RANGE(low, clock + 1));
		in[i].used = clock + 1;
		clean()
	}
	/* It stops: it issues nothing more, and lowers the end of its window to that of the
	 * last tick it used, if the key is as it knows it. That comes, or is lost, or late. */
	:: atomic {
		in[i].end ->
		after = MAX(in[i].used, in[i].from);
#ifdef MUTANT_LOWERED_BELOW_USED
		after = MAX(after - 1, in[i].from);
#endif
		if
		:: 
#ifndef MUTANT_LOWERED_BY_ANOTHER
			etcd.owner[KEY(i)] == LIVING(i) && etcd.until[KEY(i)] == in[i].end ->
#endif
			etcd.owner[KEY(i)] = LIVING(i); etcd.from[KEY(i)] = in[i].from; etcd.until[KEY(i)] = after;
			printf("%c%d: stops, and lowers its end to %d\n", 97 + ROOM(i), i, after)
#if LATE
		:: !late.until && after ->
			late.by = LIVING(i); late.owner = LIVING(i); late.end = in[i].end;
			late.from = in[i].from; late.until = after; late.lowers = 1;
			printf("%c%d: stops; that its end is %d is under way\n", 97 + ROOM(i), i, after)
#endif
		:: else -> printf("%c%d: stops; its end is not lowered\n", 97 + ROOM(i), i)
		fi;
		die(i);
		clean()
	}
#endif
#ifndef NO_KILLS
	/* It is killed, and starts again: with its journal, or without it. */
	:: d_step {
		in[i].stamp ->
		die(i);
		printf("%c%d: is killed, and starts again\n", 97 + ROOM(i), i)
	}
#endif
#ifdef LOST_JOURNAL
	:: d_step {
		in[i].seen && !in[i].gap ->
		die(i);
		in[i].gap = in[i].seen; in[i].seen = 0; in[i].told = 0;
		printf("%c%d: is killed, and starts again without its journal\n", 97 + ROOM(i), i)
	}
#endif
	od
}

/* Operators, consoles, time, and what befalls the store. */
proctype world() {
	do
#ifdef TIMES
	:: time < TIMES -> time++
#endif
	/* Any layout after any other. */
	:: atomic {
		changes < CHANGES && !etcd.halted ->
		changes++;
		select(k : A .. NO_ROOM);
		etcd.slice = k; etcd.revision++;
		printf("layout %d: the number is of room %c\n", etcd.revision, 97 + k);
		clean()
	}
#if LATE
	:: atomic {
		late.until ->
		if
		:: late.lowers ->
			k = (late.by - 1) % INSTANCES;
			ok = (etcd.owner[KEY(k)] == late.owner && etcd.until[KEY(k)] == late.end);
#ifdef MUTANT_LOWERED_BY_ANOTHER
			ok = 1;
#endif
			if
			:: ok -> etcd.owner[KEY(k)] = late.by; etcd.from[KEY(k)] = late.from; etcd.until[KEY(k)] = late.until
			:: else
			fi
		:: else ->
			k = (late.by - 1) % INSTANCES;
			compare(k, late.stamp, late.owner, late.end);
			if
			:: ok -> write(k, late.by, late.stamp, late.from, late.until)
			:: else
			fi
		fi;
		printf("late: incarnation %d's [%d, %d) arrives (%d)\n", late.by, late.from, late.until, ok);
		late.by = 0; late.stamp = 0; late.owner = 0; late.end = 0; late.from = 0; late.until = 0; late.lowers = 0;
		clean()
	}
#endif
#ifdef MUTANT_LOWERED_FOR_THE_DEAD
	/* An instance that waits for the number lowers the end of one that seems dead to its own clock. */
	:: atomic {
		etcd.owner[A] && etcd.from[A] < etcd.until[A] ->
		low = etcd.from[A]; high = etcd.until[A] - 1;
		select(after : low .. high);
		etcd.until[A] = after;
		printf("the end of the window is lowered to %d\n", after);
		clean()
	}
#endif
#ifdef MUTANT_KEY_DELETED
	:: d_step { etcd.owner[A] > INSTANCES -> etcd.owner[A] = 0; etcd.from[A] = 0; etcd.until[A] = 0; printf("the key is deleted\n") }
#endif
#ifdef UPGRADE
	:: d_step { !etcd.upgraded && !etcd.halted -> etcd.upgraded = 1; etcd.revision++; printf("rooms have keys of their own\n") }
#endif
#ifdef HOSTILE
	/* A window of any incarnation, begun at any time, that any recover freed; or no key. */
	:: atomic {
		select(k : 0 .. 2 * INSTANCES); etcd.owner[B] = k;
		select(k : 0 .. TICKS - 1); etcd.from[B] = k;
		select(k : etcd.from[B] .. TICKS); etcd.until[B] = k;
		etcd.wrote[B] = etcd.epoch; etcd.freeOf[B] = notBefore[etcd.epoch];
		clean()
	}
#endif
#if FORGETS
	:: atomic {
		forgets < FORGETS && !etcd.halted && CHECKED ->
		forgets++;
		select(k : 0 .. INSTANCES - 1);
		etcd.registered = etcd.registered & (255 - BIT(k));
		printf("operator: forgets %c%d\n", 97 + ROOM(k), k);
		clean()
	}
#endif
#if RESTORES
	:: d_step { !backup.epoch -> copy(etcd, backup); printf("a backup is taken\n") }
	:: d_step {
		backup.epoch && restores < RESTORES ->
		restores++;
		copy(backup, etcd);
		behind = 1;
		printf("etcd goes back: epoch %d, halted %d, layout %d, until %d\n",
			etcd.epoch, etcd.halted, etcd.revision, LATEST)
	}
#endif
	od
}

#if RUNS
/* March recover. */
#ifdef LOST_JOURNAL
#define MISSING(i) (REGISTERED(i) && (!(asked & BIT(i)) || in[i].gap && in[i].gap >= etcd.epoch))
#else
#define MISSING(i) (REGISTERED(i) && !(asked & BIT(i)))
#endif
#define SOME_MISSING (MISSING(0) || MISSING(1) || INSTANCES > 2 && MISSING(INSTANCES - 1))
#ifdef TIMES
#define MAY_GO_ON true
#else
#define MAY_GO_ON (!SOME_MISSING)
#endif

/* The barrier: the answer says what it has, and from then on it takes no
 * answer to what it sent before. */
inline ask(i) {
	d_step {
		etcd.halted == nonce ->
		asked = asked | BIT(i);
		if
		:: in[i].told > tellUntil[ROOM(i)] ->
			tellUntil[ROOM(i)] = in[i].told;
			tellOwner[ROOM(i)] = (in[i].told == in[i].end -> LIVING(i) : DEAD(i));
			tellFrom[ROOM(i)] = (in[i].told == in[i].end -> in[i].from : 0)
		:: else
		fi;
		if
#ifdef MUTANT_JOURNAL_EXEMPTS
		:: in[i].told > running -> running = in[i].told; goesOn = i + 1
#endif
		:: in[i].end > running -> running = in[i].end; goesOn = i + 1
		:: else
		fi;
#ifndef MUTANT_WINDOW_NO_BARRIER
		in[i].barred = nonce;
		forgetKey(i);
#endif
		in[i].fresh = 0;
		printf("recover: %c%d answers until %d\n", 97 + ROOM(i), i, in[i].told)
	}
}

#ifdef MUTANT_WINDOW_NO_BARRIER
#define ANSWER_STANDS(i) true
#else
#define ANSWER_STANDS(i) (!(asked & BIT(i)) || in[i].barred == nonce || in[i].fresh)
#endif
#if INSTANCES == 2
#define ANSWERS_STAND (ANSWER_STANDS(0) && ANSWER_STANDS(1))
#else
#define ANSWERS_STAND (ANSWER_STANDS(0) && ANSWER_STANDS(1) && ANSWER_STANDS(2))
#endif

inline clearTold() {
	tellOwner[0] = 0; tellFrom[0] = 0; tellUntil[0] = 0;
#if ROOMS > 1
	tellOwner[1] = 0; tellFrom[1] = 0; tellUntil[1] = 0;
#endif
	goesOn = 0; running = 0
}

/* A room's key is raised to what memories know of the room, whatever other keys say. The key of
 * before is raised in its place while all rooms write that. */
#ifdef UPGRADE
#define OLD_OR(room) (etcd.upgraded -> room : 2)
#else
#define OLD_OR(room) (room)
#endif
inline raise(room) {
	if
#ifndef MUTANT_RECOVER_DOES_NOT_RAISE
	:: tellUntil[room] > etcd.until[OLD_OR(room)] ->
		etcd.until[OLD_OR(room)] = tellUntil[room];
		etcd.owner[OLD_OR(room)] = tellOwner[room]; etcd.from[OLD_OR(room)] = tellFrom[room]
#endif
	:: else
	fi
}

proctype recover() {
	byte nonce, asked, life;
	do
	/* It halts, over any other halt; or again, where it broke off. */
	:: d_step {
#ifdef EARLY
		restores &&
#endif
		runs < RUNS ->
		runs++;
		nonce = runs; life = LIFE; asked = 0;
		clearTold();
		etcd.halted = nonce;
		printf("recover %d: halts\n", nonce)
	}
	:: atomic { nonce && !(asked & BIT(0)) && etcd.halted == nonce -> ask(0) }
	:: atomic { nonce && !(asked & BIT(1)) && etcd.halted == nonce -> ask(1) }
#if INSTANCES > 2
	:: atomic { nonce && !(asked & BIT(2)) && etcd.halted == nonce -> ask(2) }
#endif
	/* It raises what a memory knows better, and writes the epoch. */
	:: atomic {
		nonce && life == LIFE && MAY_GO_ON && etcd.halted == nonce && ANSWERS_STAND ->
		look(AHEAD);
		k = 0;
		d_step {
			raise(0);
#if ROOMS > 1
			raise(1);
#endif
			epochs++;
#ifndef MUTANT_NOT_CARRIED
			notBefore[epochs] = notBefore[etcd.epoch];
#endif
#ifdef TIMES
			if
			:: SOME_MISSING ->
				/* later than that of an earlier epoch, as it covers more instances */
				notBefore[epochs] = MAX(notBefore[epochs] + (notBefore[epochs] > 0), clock + LONGEST + 2 * AHEAD)
			:: else
			fi;
			/* The window of a living incarnation that runs still, by any clock: no other
			 * incarnation has taken the number since. Its room's key says so. */
			k = (goesOn -> OLD_OR(ROOM(goesOn - 1)) : 0);
			if
#ifdef MUTANT_ANY_ANSWER_EXEMPTS
			:: running && etcd.until[k] == running && running == LATEST ->
#else
			:: running > clock + 2 * AHEAD && etcd.until[k] == running && running == LATEST ->
#endif
				etcd.freeOf[k] = notBefore[epochs]
			:: else
			fi;
			k = 0;
#endif
			etcd.registered = etcd.registered & (asked | ~(BIT(INSTANCES) - 1));
			etcd.epoch = epochs;
			etcd.halted = 0;
			etcd.revision++;
#if RESTORES
			behind = 0;
#endif
			printf("recover %d: writes epoch %d, until %d, not before %d, free of %d\n",
				nonce, etcd.epoch, LATEST, notBefore[epochs], etcd.freeOf[0]);
			nonce = 0; asked = 0; life = 0;
			clearTold()
		}
		clean()
	}
	od
}
#endif

init {
	atomic {
		etcd.revision = 1;
		etcd.epoch = 1;
		etcd.slice = A;
		etcd.registered = BIT(INSTANCES) - 1;
		epochs = 1;
#ifdef TIMES
		time = AHEAD;
#endif
#ifdef EARLY
		copy(etcd, backup);
#endif
		do
		:: k < INSTANCES ->
			in[k].at = reading;
#if RUNS
			in[k].seen = 1; /* where it took nothing, as if it had not */
#endif
			run instance(k);
			k++
		:: else -> break
		od;
		clean();
		run world();
#if RUNS
		run recover()
#endif
	}
}

/*
 * The protocol by which March leases IDs, for the model checker spin. README.md
 * beside it goes through it line by line; `make model` runs it.
 *
 * One tag, two rooms, a few instances, a few IDs. A room's range is kept as the
 * set of its IDs (bit k: ID k), which is all that a lease needs of a layout.
 *
 * What is one step: a transaction of etcd (it is serializable: atomic), and
 * what one process does by itself between two of them. All else interleaves.
 * Every `atomic` and `d_step` below contains at most one transaction; a lease's
 * transaction and what its instance makes of the answer are two steps.
 *
 * MUTANT_... breaks the protocol in one place, LIMIT_... takes away something
 * that it assumes. Each must make an assertion fail.
 */

#ifndef INSTANCES
#define INSTANCES 2	/* instance i serves room i % 2 */
#endif
#ifndef IDS
#define IDS 6		/* the tag's limit, exclusive: 15 at most */
#endif
#ifndef STEP
#define STEP 2		/* a lease asks for 1 to STEP IDs */
#endif
#ifndef BOUNDARY
#define BOUNDARY 2	/* layouts are all those of boundaries 1 to BOUNDARY */
#endif
#ifndef CHANGES
#define CHANGES 1	/* of the layout, in all lives of the store together */
#endif
#ifndef RAISES
#define RAISES 0	/* of a mark by a helper: skip, import */
#endif
#ifndef SNAPSHOTS
#define SNAPSHOTS 0	/* times that a member falls behind and answers from there */
#endif
#ifndef LATE
#define LATE 0		/* requests that arrive after their sender gave up */
#endif
#ifndef RESTORES
#define RESTORES 0	/* of the one backup */
#endif
#ifndef FENCES
#define FENCES 0	/* halts on purpose, or by mistake */
#endif
#ifndef RUNS
#define RUNS (RESTORES + FENCES + 1)	/* of recover */
#endif
#ifndef FORGETS
#define FORGETS 0	/* registrations removed by an operator */
#endif

#define A 0
#define B 1
#define ROOM(i) ((i) % 2)
#define BIT(n) (1 << (n))
#define MAX(x, y) ((x) > (y) -> (x) : (y))

/* A stamp is (epoch, mod revision of the layout); 0 is none. */
#define STAMP(epoch, revision) ((epoch) * 16 + (revision))
#define EPOCH(stamp) ((stamp) / 16)
#define REVISION(stamp) ((stamp) % 16)

/* What etcd holds, and a restore takes back. */
typedef Store {
	byte epoch;		/* the last one that was written; counts while halted is 0 */
	byte halted;		/* 0, or the nonce of who halted */
	byte revision;		/* mod revision of the layout */
	short range[2];		/* of each room, as a set of IDs; 0 for none */
	byte ever;		/* rooms that ever had a range, as bits */
	byte next[2];		/* the marks; 0: there is none */
	byte stamp[2];		/* the marks' */
	byte registered		/* instances, as bits */
}

Store etcd;
#define NOW STAMP(etcd.epoch, etcd.revision)
#define MEMBER(r) ((etcd.ever / BIT(r)) % 2)
#define FLOOR_OF(m) MAX((MEMBER(A) -> etcd.next[A] : 0), (MEMBER(B) -> etcd.next[B] : 0))

/* What an instance knows. */
mtype = { reading, leasing, answered };
typedef Instance {
	mtype at;		/* reading: mark unknown; leasing: known; answered: a lease committed, its answer under way */
	byte stamp;		/* epoch and layout, 0 for none; of the layout: */
	short range;		/* its room's */
	byte next;		/* the mark, */
	byte markStamp;		/* and its stamp */
	bit floored;		/* whether the floor was read under stamp */
	byte floor;
	bit retry;		/* the last try was refused */
	short segment		/* that a committed lease put into the mark */
#if RESTORES || FENCES
;	byte told;		/* its journal: one above the largest ID that it accepted */
	byte seen;		/* its journal: epochs, as bits */
	bit barred;		/* it answered recover, and waits for an epoch that it never saw */
	bit checked		/* the beat, over this connection */
#endif
}
Instance in[INSTANCES];

short issued;			/* the oracle: every ID ever issued, as bits */

/* A request whose sender gave up. */
typedef Request { byte by; byte stamp; byte next; byte markStamp; byte end }
#if LATE
Request late;			/* end 0: none */
#endif

#ifdef MUTANT_STALE_FLOOR
#define OLD_HOLDS(known) (oldStamp != 0)
#else
#define OLD_HOLDS(known) (oldStamp == known)
#endif

#define copy(from, to) \
	to.epoch = from.epoch; to.halted = from.halted; to.revision = from.revision; \
	to.range[A] = from.range[A]; to.range[B] = from.range[B]; to.ever = from.ever; \
	to.next[A] = from.next[A]; to.next[B] = from.next[B]; \
	to.stamp[A] = from.stamp[A]; to.stamp[B] = from.stamp[B]; to.registered = from.registered

#if RESTORES
Store backup;			/* epoch 0: none was taken */
byte restores;
#endif
#if RESTORES || FENCES
bit behind;			/* the raft index is below the beat's */
#endif

#if SNAPSHOTS
/* A member that fell behind: what a floor read from it shows. */
byte oldStamp, oldFloor;
byte snapshots;
#endif

byte changes, raises, fences, forgets;

/* Scratch, which is 0 between steps. */
byte n, k, b, lo1, hi1, lo2, hi2, base, end;
short seg;
bit ok;

inline clean() {
	d_step {
		n = 0; k = 0; b = 0; lo1 = 0; hi1 = 0; lo2 = 0; hi2 = 0; base = 0; end = 0; seg = 0; ok = 0
	}
}

/* The first n IDs from base on in a range, counted up from the base; 0 where
 * the limit comes first. */
inline cut(ids) {
	d_step {
		seg = 0; end = base; k = 0;
		do
		:: k < n && end < IDS ->
			if
			:: ids & BIT(end) -> seg = seg | BIT(end); k++
			:: else
			fi;
			end++
		:: else -> break
		od;
		if
		:: k < n -> seg = 0
		:: else
		fi;
		k = 0
	}
}

/* The IDs with residues [lo, hi) modulo b. */
inline fill(ids, lo, hi) {
	ids = 0; k = 0;
	do
	:: k < IDS ->
		if
		:: lo <= k % b && k % b < hi -> ids = ids | BIT(k)
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0
}

/* Any valid layout: any boundary, any two ranges that do not overlap, either
 * of them perhaps empty, in either order. The caller's atomic makes it one
 * step with the compare-and-swap that writes it. */
inline anyLayout() {
	select(b : 1 .. BOUNDARY);
	select(lo1 : 0 .. b);
	select(hi1 : lo1 .. b);
	select(lo2 : hi1 .. b);
	select(hi2 : lo2 .. b);
	if
	:: d_step { fill(etcd.range[A], lo1, hi1); fill(etcd.range[B], lo2, hi2) }
	:: d_step { fill(etcd.range[B], lo1, hi1); fill(etcd.range[A], lo2, hi2) }
	fi;
	d_step {
		etcd.ever = etcd.ever | (etcd.range[A] -> BIT(A) : 0) | (etcd.range[B] -> BIT(B) : 0);
#ifdef MUTANT_MARK_DELETED
		if
		:: etcd.range[A] == 0 -> etcd.next[A] = 0; etcd.stamp[A] = 0
		:: else
		fi;
		if
		:: etcd.range[B] == 0 -> etcd.next[B] = 0; etcd.stamp[B] = 0
		:: else
		fi;
#endif
		skip
	}
}

#ifdef MUTANT_NO_LAYOUT
#define SAME_LAYOUT(known) true
#else
#define SAME_LAYOUT(known) (etcd.revision == REVISION(known))
#endif
#ifdef MUTANT_NO_EPOCH
#define SAME_EPOCH(known) true
#define SAME(s, t) (REVISION(s) == REVISION(t))
#else
#define SAME_EPOCH(known) (etcd.epoch == EPOCH(known) && !etcd.halted)
#define SAME(s, t) ((s) == (t))
#endif
#ifdef MUTANT_NO_REGISTRATION
#define STILL_REGISTERED(i) true
#else
#define STILL_REGISTERED(i) ((etcd.registered / BIT(i)) % 2)
#endif

/* The conditions of a lease that is sent by i under stamp known, over the mark
 * (next, markStamp). The mark's value stands for its mod revision too: no two
 * versions of a mark have one next. */
inline compare(i, known, next0, stamp0) {
	ok = SAME_LAYOUT(known) && SAME_EPOCH(known) && STILL_REGISTERED(i) &&
		etcd.next[ROOM(i)] == next0 && etcd.stamp[ROOM(i)] == stamp0
}

/* A mark is written here, when leased, and in raise. */
inline write(i, known, to) {
	etcd.next[ROOM(i)] = to;
	etcd.stamp[ROOM(i)] = known
}

/* A helper raises a mark: the stamp stays. */
inline raise(r, to) {
	if
	:: to > etcd.next[r] ->
		etcd.next[r] = to;
#ifdef MUTANT_SKIP_STAMPS
		etcd.stamp[r] = NOW
#endif
	:: else
	fi
}

/* An instance sees the epoch and layout that hold. */
inline learn(i) {
	in[i].stamp = NOW;
	in[i].range = etcd.range[ROOM(i)];
#ifndef MUTANT_FLOOR_BEFORE_LAYOUT
	in[i].floored = 0; in[i].floor = 0;
#endif
#if RESTORES || FENCES
	in[i].seen = in[i].seen | BIT(etcd.epoch);
	in[i].barred = 0
#endif
}

/* It sees its room's mark. */
inline learnMark(i) {
	in[i].next = etcd.next[ROOM(i)];
	in[i].markStamp = etcd.stamp[ROOM(i)];
	in[i].at = leasing;
	if
	:: SAME(in[i].markStamp, in[i].stamp) -> in[i].floored = 0; in[i].floor = 0 /* needs none */
	:: else
	fi
}

/* It forgets the mark: the outcome of its last try is unknown. */
inline forgetMark(i) {
	in[i].at = reading;
	in[i].next = 0; in[i].markStamp = 0; in[i].segment = 0; in[i].retry = 0
}

#if RESTORES || FENCES
#define MAY_LEASE(i) (in[i].checked && !in[i].barred)
#define NEW_EPOCH(i) (!in[i].barred || !(in[i].seen & BIT(etcd.epoch)))
#else
#define MAY_LEASE(i) true
#define NEW_EPOCH(i) true
#endif

/* Instance i of room i % 2. It may stand still at any point for as long as it
 * likes, and go on: that is an interleaving. */
proctype instance(byte i) {
	do
	/* 1. It learns epoch and layout, sooner or later. A read that shows an older
	 * layout is a read of then that took its time. */
	:: atomic {
		!etcd.halted && in[i].stamp != NOW && in[i].at != answered && NEW_EPOCH(i) ->
		learn(i);
		printf("%c%d: learns epoch %d, layout %d\n", 97 + ROOM(i), i, etcd.epoch, etcd.revision)
	}
	/* 2, 3. It reads the mark and the floor, on condition that what it knows
	 * holds. Where it does not, the answer shows what does: learn. */
	:: atomic {
		!etcd.halted && in[i].stamp && in[i].at != answered && SAME(in[i].stamp, NOW) &&
		(in[i].at == reading || !SAME(in[i].markStamp, in[i].stamp) && !in[i].floored) ->
#ifndef MUTANT_NO_FLOOR
		in[i].floor = FLOOR_OF(0);
#endif
		in[i].floored = 1;
		learnMark(i);
		printf("%c%d: reads its mark %d and floor %d\n", 97 + ROOM(i), i, in[i].next, FLOOR_OF(0))
	}
#if SNAPSHOTS
	/* The same from a member that has fallen behind. A mark that is too old would
	 * be refused later, and a newer one shown: so it is the newer one at once. */
	:: atomic {
		OLD_HOLDS(in[i].stamp) && in[i].stamp && in[i].at != answered &&
		(in[i].at == reading || in[i].markStamp != in[i].stamp && !in[i].floored) ->
		in[i].floor = oldFloor;
		in[i].floored = 1;
		learnMark(i);
		printf("%c%d: reads floor %d from the member that is behind\n", 97 + ROOM(i), i, oldFloor)
	}
#endif
	/* 4, 5. It sends the lease and etcd decides. In between nothing changes that
	 * the request is made of, so that it is made when it arrives. */
	:: atomic {
		in[i].at == leasing && in[i].range && MAY_LEASE(i) &&
		(SAME(in[i].markStamp, in[i].stamp) || in[i].floored) ->
		base = in[i].next;
#ifdef MUTANT_RETRY_FORGETS
		base = (in[i].retry -> 0 : base);
#endif
		base = (SAME(in[i].markStamp, in[i].stamp) -> base : MAX(base, in[i].floor));
		select(n : 1 .. STEP);
		cut(in[i].range);
		compare(i, in[i].stamp, in[i].next, in[i].markStamp);
		if
		:: seg && ok -> /* done; the answer is under way */
			write(i, in[i].stamp, end);
			in[i].at = answered; in[i].segment = seg;
			in[i].next = end; in[i].markStamp = in[i].stamp;
			in[i].floored = 0; in[i].floor = 0; in[i].retry = 0;
			printf("%c%d: lease of %d IDs from %d commits, mark %d\n", 97 + ROOM(i), i, n, base, end)
		:: seg && ok -> /* done; the answer is lost */
			write(i, in[i].stamp, end);
			forgetMark(i);
			printf("%c%d: lease of %d IDs from %d commits, mark %d; the answer is lost\n", 97 + ROOM(i), i, n, base, end)
		:: seg && ok -> /* done; sent again, and refused by its own doing */
			write(i, in[i].stamp, end);
			learnMark(i);
			in[i].retry = 1;
			printf("%c%d: lease of %d IDs from %d commits, mark %d; it arrives twice, the second answer is seen: refused\n", 97 + ROOM(i), i, n, base, end)
		:: seg && !ok -> /* refused; the answer shows the mark, as to the rest: learn */
			learnMark(i);
			in[i].retry = 1;
			printf("%c%d: lease of %d IDs from %d is refused; mark %d\n", 97 + ROOM(i), i, n, base, in[i].next)
#if LATE
		:: seg && !late.end -> /* it is under way when its sender gives up */
			late.by = i; late.stamp = in[i].stamp; late.next = in[i].next; late.markStamp = in[i].markStamp; late.end = end;
			forgetMark(i);
			printf("%c%d: lease of %d IDs from %d is under way; its sender gives up\n", 97 + ROOM(i), i, n, base)
#endif
#ifdef MUTANT_UNKNOWN_IS_SUCCESS
		:: seg -> /* lost */
			in[i].at = answered; in[i].segment = seg;
			in[i].next = end; in[i].markStamp = in[i].stamp; in[i].floored = 0; in[i].floor = 0;
			printf("%c%d: lease of %d IDs from %d is lost on the way and taken for done\n", 97 + ROOM(i), i, n, base)
#endif
		:: seg -> /* lost on the way */
			forgetMark(i);
			printf("%c%d: lease of %d IDs from %d is lost on the way\n", 97 + ROOM(i), i, n, base)
		:: !seg -> skip /* the limit */
		fi;
		clean()
	}
	/* 6. It takes the answer; or never does. It issues all of the segment at once:
	 * an ID that is issued later, or never, collides with no more than that. */
	:: atomic {
		in[i].at == answered ->
		if
		:: in[i].segment & issued -> printf("%c%d: accepts IDs %x of which %x were issued before\n", 97 + ROOM(i), i, in[i].segment, in[i].segment & issued)
		:: else -> printf("%c%d: accepts and issues IDs %x\n", 97 + ROOM(i), i, in[i].segment)
		fi;
		assert(!(in[i].segment & issued)); /* no ID twice */
		issued = issued | in[i].segment;
#if RESTORES || FENCES
		in[i].told = MAX(in[i].told, in[i].next);
#endif
		in[i].segment = 0;
		in[i].at = leasing
	}
#ifndef NO_KILLS
	/* It is killed, and starts again with its journal. */
	:: atomic {
		in[i].stamp ->
		forgetMark(i);
		in[i].stamp = 0; in[i].range = 0; in[i].floored = 0; in[i].floor = 0;
#if RESTORES || FENCES
		in[i].barred = 0; in[i].checked = 0;
#endif
		printf("%c%d: is killed, and starts again\n", 97 + ROOM(i), i)
	}
#endif
#if RESTORES || FENCES
	/* It looks at the beat, before it leases over a new connection. */
	:: atomic {
		!in[i].checked && !etcd.halted ->
		if
#ifdef LIMIT_UNSEEN_RESTORE
		:: in[i].checked = 1
#endif
		:: behind -> etcd.halted = 255; printf("%c%d: sees that etcd went back, and halts\n", 97 + ROOM(i), i)
		:: !behind -> in[i].checked = 1
		fi
	}
#endif
	od
}

#ifdef MUTANT_FORGET_UNCHECKED
#define MAY_FORGET true
#else
#define MAY_FORGET (!etcd.halted && !behind)
#endif

/* Operators, consoles, and what befalls the store. */
proctype world() {
	do
	/* A layout that follows any other: compare-and-swap on layout and epoch. */
	:: atomic {
		changes < CHANGES && !etcd.halted ->
		changes++;
		anyLayout();
		etcd.revision++;
		printf("layout %d: boundary %d, a %x, b %x\n", etcd.revision, b, etcd.range[A], etcd.range[B]);
		clean()
	}
#if RAISES
	/* A skip or an import raises a mark, by 1 or 2. */
	:: atomic {
		raises < RAISES ->
		raises++;
		select(k : A .. B);
		select(n : 1 .. 2);
		base = etcd.next[k] + n;
		raise(k, base);
		printf("helper: raises the mark of room %c to %d\n", 97 + k, base);
		clean()
	}
#endif
#if SNAPSHOTS
	:: atomic {
		snapshots < SNAPSHOTS ->
		snapshots++;
		oldStamp = NOW; oldFloor = FLOOR_OF(0);
		printf("a member falls behind: it shows floor %d under layout %d\n", oldFloor, etcd.revision)
	}
	:: d_step { oldStamp -> oldStamp = 0; oldFloor = 0 }
#endif
#if LATE
	:: atomic {
		late.end ->
		compare(late.by, late.stamp, late.next, late.markStamp);
		if
		:: ok -> write(late.by, late.stamp, late.end)
		:: else
		fi;
		printf("late: the lease of %d arrives (%d), mark %d\n", late.by, ok, late.end);
		clean();
		late.by = 0; late.stamp = 0; late.next = 0; late.markStamp = 0; late.end = 0
	}
#endif
#if FORGETS
	/* Forget compares the epoch and looks at the beat first: a restored store
	 * must not lose those whom recover has to ask. */
	:: atomic {
		forgets < FORGETS && MAY_FORGET ->
		forgets++;
		select(k : 0 .. INSTANCES - 1);
		etcd.registered = etcd.registered & (255 - BIT(k));
		printf("operator: forgets %c%d\n", 97 + ROOM(k), k);
		clean()
	}
#endif
#if FENCES
	/* A halt on purpose, or by somebody who was mistaken. */
	:: d_step {
		fences < FENCES && !etcd.halted ->
		fences++;
		etcd.halted = 254;
		printf("operator: halts\n")
	}
#endif
#if RESTORES
	:: d_step {
		!backup.epoch ->
		copy(etcd, backup);
		printf("a backup is taken\n")
	}
	:: d_step {
		backup.epoch && restores < RESTORES ->
		restores++;
		copy(backup, etcd);
		behind = 1;
		/* All connections are new, and what was sent over the old ones is gone. */
#ifndef LIMIT_CARRIED
		k = 0;
		do
		:: k < INSTANCES -> in[k].checked = 0; k++
		:: else -> break
		od;
		k = 0;
#endif
#if LATE
		late.by = 0; late.stamp = 0; late.next = 0; late.markStamp = 0; late.end = 0;
#endif
#if SNAPSHOTS
		oldStamp = 0; oldFloor = 0;
#endif
		printf("etcd is restored: epoch %d, layout %d, marks %d %d\n", etcd.epoch, etcd.revision, etcd.next[A], etcd.next[B])
	}
#endif
	od
}

#if RESTORES || FENCES
/* March recover. */
byte epochs;			/* ever made, in all lives: a random one is one more */
byte runs;			/* of recover, ever */

/* Whether recover need not hear of i: it has, or the store does not know i, or
 * the operator says to go on without and vouches that what i accepted, or may
 * yet accept, lies below all that is known. */
#define REGISTERED(i) ((etcd.registered / BIT(i)) % 2)
#define MAY_ACCEPT(i) MAX(in[i].told, (in[i].at == answered -> in[i].next : 0))
#ifdef LIMIT_LEFT_OUT
#define SETTLED(i) true
#else
#define SETTLED(i) ((asked & BIT(i)) || !REGISTERED(i) || MAY_ACCEPT(i) <= MAX(most, MAX(etcd.next[A], etcd.next[B])))
#endif
#if INSTANCES == 2
#define ALL_SETTLED (SETTLED(0) && SETTLED(1))
#else
#define ALL_SETTLED (SETTLED(0) && SETTLED(1) && SETTLED(2))
#endif

/* The question and its answer: what the instance accepted, and from then on it
 * accepts no answer to what it sent before. What is still on its way to etcd is
 * refused there, for the halted epoch. A dead instance answers by its journal. */
inline ask(i) {
	d_step {
		asked = asked | BIT(i);
		most = MAX(most, in[i].told);
		rooms = rooms | (in[i].told -> BIT(ROOM(i)) : 0);
#ifdef MUTANT_RECOVER_EACH_ROOM
		own[ROOM(i)] = MAX(own[ROOM(i)], in[i].told);
#endif
#ifndef MUTANT_NO_BARRIER
		in[i].barred = 1;
		forgetMark(i);
#endif
		printf("recover: %c%d answers %d\n", 97 + ROOM(i), i, in[i].told)
	}
}

#ifdef SPARE_LIST
#define RAISE_OWN(r) raise(r, own[r])
#else
#define RAISE_OWN(r) if :: MEMBER(r) -> raise(r, own[r]) :: else fi; rooms = 0
#endif

proctype recover() {
	byte nonce, asked, most, rooms;
#ifdef MUTANT_RECOVER_EACH_ROOM
	byte own[2];
#endif
	do
	/* 1. It halts, over anybody's halt. */
	:: atomic {
		runs < RUNS && (behind || etcd.halted) ->
		runs++;
		nonce = runs;
		etcd.halted = nonce;
		printf("recover: halts\n")
	};
	do
	:: atomic { !(asked & BIT(0)) -> ask(0) }
	:: atomic { !(asked & BIT(1)) -> ask(1) }
#if INSTANCES > 2
	:: atomic { !(asked & BIT(2)) -> ask(2) }
#endif
	/* 2. */
	:: atomic {
		ALL_SETTLED ->
		most = MAX(most, MAX(etcd.next[A], etcd.next[B]));
		asked = 0;
		break
	}
	od;
	/* 3. It raises all rooms to one number above all that is known (a margin on
	 * top would only hide faults), room by room. */
#ifdef MUTANT_RECOVER_EACH_ROOM
	atomic { RAISE_OWN(A) };
	atomic { RAISE_OWN(B); own[A] = 0; own[B] = 0 };
#else
	atomic { raise(A, most); printf("recover: mark of a is %d\n", etcd.next[A]) };
	atomic { raise(B, most); printf("recover: mark of b is %d\n", etcd.next[B]) };
#endif
	/* 4. The new epoch, if the halt is still its own, with a fresh beat. */
	atomic {
		if
		:: etcd.halted == nonce ->
			etcd.halted = 0;
			behind = 0;
			etcd.ever = etcd.ever | rooms;
			epochs++;
#ifdef MUTANT_EPOCH_COUNTS
			etcd.epoch++;
#else
			etcd.epoch = epochs;
#endif
			printf("recover: writes epoch %d\n", etcd.epoch)
		:: else -> printf("recover: its halt is gone\n")
		fi;
		nonce = 0; most = 0; rooms = 0
	}
	od
}
#endif

init {
	atomic {
		anyLayout();
		etcd.revision = 1;
		etcd.epoch = 1;
		etcd.registered = BIT(INSTANCES) - 1;
		printf("layout 1: boundary %d, a %x, b %x\n", b, etcd.range[A], etcd.range[B]);
		k = 0;
		do
		:: k < INSTANCES -> in[k].at = reading; run instance(k); k++
		:: else -> break
		od;
		clean();
		run world();
#if RESTORES || FENCES
		epochs = 1;
		run recover()
#endif
	}
}

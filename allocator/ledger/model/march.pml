/*
 * The protocol by which March leases IDs, for the model checker spin. README.md
 * beside it goes through it line by line; `make model` runs it.
 *
 * One tag, two rooms, a few instances, a few IDs. A set of IDs is kept as bits
 * (bit k: ID k). A room's range is the set of its IDs, which is all that a lease
 * needs of a layout.
 *
 * What is one step: a transaction of etcd (it is serializable: atomic), and
 * what one process does by itself between two of them. All else interleaves.
 * Every `atomic` and `d_step` below contains at most one transaction; a lease's
 * transaction and what its instance makes of the answer are two steps.
 *
 * MUTANT_... breaks the protocol in one place, LIMIT_... takes away something
 * that it assumes. Each must make an assertion fail.
 */

#ifdef ONE_ROOM		/* all instances serve room a, under one layout */
#define SMALL
#define ROOM_MATES
#define CHANGES 0
#endif
#ifdef SMALL		/* one boundary: a room has all IDs or none; room a first */
#define A_FIRST
#define BOUNDARY 1
#define STEP 1
#endif
#ifndef INSTANCES
#define INSTANCES 2	/* instance i serves room i % 2, or room a with ROOM_MATES */
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
#ifndef START
#define START 0		/* the tag's start: no lease begins below it */
#endif
#ifndef RAISES
#define RAISES 0	/* of a mark by an operator: skip, import */
#endif
#ifndef SNAPSHOTS
#define SNAPSHOTS 0	/* times that a member falls behind and answers from there */
#endif
#ifndef LATE
#define LATE 0		/* requests that arrive after their sender gave up, also after a restore */
#endif
#ifndef BACKUPS
#define BACKUPS 1	/* places for a backup; one is taken once */
#endif
#ifndef RESTORES
#define RESTORES 0	/* of any backup */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0	/* of raft's own data, which no beat shows */
#endif
#ifndef RUNS
#define RUNS (RESTORES + ROLLBACKS)	/* of recover, of which each may break off */
#endif
#ifndef MARGIN
#define MARGIN 0	/* steps that a recover adds where it went on without an instance */
#endif
#ifndef FORGETS
#define FORGETS 0	/* registrations removed by an operator */
#endif
#ifndef LEAVES
#define LEAVES 0	/* instances that leave in good order */
#endif
/*
 * Other switches:
 * ROOM_MATES   all instances serve room a
 * A_FIRST      the first layout gives all IDs to room a
 * EARLY        the backup is of the start, and no recover runs before it is restored
 * NO_KILLS     no instance is killed
 * NO_RESENT    no request arrives twice
 * HALTED_BACKUP the second backup is taken while leasing is halted
 * REFUSED      an instance may answer recover without its barrier
 * LOST_ANSWERS an answer to the barrier may be lost
 * LOST_JOURNAL an instance may be killed once and start again without its journal
 * ORPHANS      with 2 instances: the margin may be too small. Chains are held, and the duplicates
 *              that the design names are excused (see `lease`), and no others.
 *              Without it recover goes on without instances only where the margin covers
 *              the steps that a restore took from them.
 */

#define A 0
#define B 1
#ifdef ROOM_MATES
#define ROOM(i) A
#else
#define ROOM(i) ((i) % 2)
#endif
#define BIT(n) (1 << (n))
#define MAX(x, y) ((x) > (y) -> (x) : (y))
#define MIN(x, y) ((x) < (y) -> (x) : (y))

/* A stamp is (epoch, mod revision of the layout); 0 is none. Stamps also compare
 * as the versions of their layouts do: a change adds one to both, and the
 * version that a recover writes is above every version before it. */
#define STAMP(epoch, revision) ((epoch) * 16 + (revision))
#define EPOCH(stamp) ((stamp) / 16)
#define REVISION(stamp) ((stamp) % 16)

/* What etcd holds, and a restore takes back. */
typedef Store {
	byte epoch;		/* in force, or stopped by a halt; counts over all lives */
	byte halted;		/* 0, or the nonce of the halt */
	byte revision;		/* mod revision of the layout */
	short range[2];		/* of each room, as a set of IDs; 0 for none */
	byte ever;		/* rooms that ever had a range, as bits */
	byte next[2];		/* the marks; 0: there is none */
	byte stamp[2];		/* the marks' */
	byte registered;	/* instances, as bits */
	byte writes;		/* etcd's revision, where instances leave, */
	byte beat		/* and the one that its beat carries */
}

Store etcd;
#define NOW STAMP(etcd.epoch, etcd.revision)
#define MEMBER(r) ((etcd.ever / BIT(r)) % 2)

/* What an epoch says. It never changes, and no two epochs are the same. */
#define EPOCHS (RUNS + 2)
typedef Epoch {
	byte total;		/* margin total; a mark has that of its stamp's epoch */
	byte last;		/* the margin that the last recover added */
	byte listed;		/* instances whose answers recover took, as bits */
	byte stopped;		/* the epoch that the halt stopped */
#ifdef ORPHANS
	byte floor		/* of the marks, when it began */
#endif
}
Epoch ep[EPOCHS];
byte epochs;			/* ever made, in all lives: a random one is one more */

/* d of the design: what the floor adds to a mark that lacks steps of the total.
 * The narrowest range has one ID in each block. */
#ifdef MUTANT_MARGIN_IN_IDS
#define SPAN STEP
#else
#define SPAN ((STEP + 1) * BOUNDARY)
#endif
#ifdef MUTANT_LAST_MARGIN
#define LACKS(r) (EPOCH(etcd.stamp[r]) != etcd.epoch -> ep[etcd.epoch].last : 0)
#else
#ifdef MUTANT_NO_MARGIN
#define LACKS(r) 0
#else
#define LACKS(r) (ep[etcd.epoch].total - ep[EPOCH(etcd.stamp[r])].total)
#endif
#endif
/* Leases that a restore took began at START or above, so a margin lies above it too. */
#ifdef MUTANT_MARGIN_BELOW_START
#define LOWEST(r) etcd.next[r]
#else
#define LOWEST(r) (LACKS(r) -> MAX(etcd.next[r], START) : etcd.next[r])
#endif
#define REACH(r) MIN(LOWEST(r) + LACKS(r) * SPAN, IDS)
#define FLOOR MAX((MEMBER(A) -> REACH(A) : 0), (MEMBER(B) -> REACH(B) : 0))

/* What an instance knows. */
mtype = { reading, leasing, answered, gone };
typedef Instance {
	/* reading: its mark is unknown; leasing: known; answered: a lease committed, and
	 * its answer is under way; gone: it left */
	mtype at;
	byte stamp;		/* epoch and layout, 0 for none; of the layout: */
	short range;		/* its room's */
	byte next;		/* the mark, */
	byte markStamp;		/* and its stamp */
	byte floor;		/* read under stamp, where markStamp is another */
#ifdef MUTANT_FLOOR_BEFORE_LAYOUT
	bit floored;
#endif
	bit retry;		/* the last try was refused */
	short segment		/* that a committed lease put into the mark */
#if RUNS
;	byte told;		/* journal: one above the largest ID that it accepted */
	byte joined;		/* journal: the epochs that it was in, as bits */
	byte barred;		/* nonce of the halt for which it accepted recover's barrier; 0 from the next epoch on */
	bit fresh;		/* this incarnation accepted no barrier */
	bit raises;		/* it was left out of the epoch of stamp, and has to raise marks before it joins */
	byte rooms;		/* the rooms of which it will raise the marks */
#ifdef LOST_JOURNAL
	byte gap;		/* the latest epoch of which an incarnation before had a journal that is lost */
#endif
#if RESTORES && MARGIN
	byte steps;		/* ghost: leased since the backup in this life, */
	byte lost;		/* ghost: and in lives that a restore ended; */
	byte blind;		/* ghost: and since it last accepted an answer */
#endif
#ifdef ORPHANS
	short held;		/* its chain: accepted, not issued */
	short had;		/* ghost: all IDs that it ever accepted */
	short taken		/* ghost: those that others leased in epochs that left it out */
#endif
#endif
}
Instance in[INSTANCES];

short issued;			/* the oracle: every ID ever issued, as bits */

#if LATE
/* A request whose sender gave up. */
typedef Request { byte by; byte stamp; byte next; byte markStamp; byte end; short segment }
Request late;			/* end 0: none */
#endif

#define copy(from, to) \
	to.epoch = from.epoch; to.halted = from.halted; to.revision = from.revision; \
	to.range[A] = from.range[A]; to.range[B] = from.range[B]; to.ever = from.ever; \
	to.next[A] = from.next[A]; to.next[B] = from.next[B]; \
	to.stamp[A] = from.stamp[A]; to.stamp[B] = from.stamp[B]; \
	to.registered = from.registered; to.writes = from.writes; to.beat = from.beat

#if RESTORES || ROLLBACKS
Store backup[BACKUPS];		/* epoch 0: none was taken */
byte restores;
bit behind;			/* the raft index is below the beat's */
#endif

#if SNAPSHOTS
/* A member that fell behind: what a floor read from it shows. */
byte oldStamp, oldFloor;
byte snapshots;
#endif

#if LEAVES
/* What others remember of an instance that left: epoch 0, it did not. */
typedef Leave { byte epoch; byte writes }
Leave left[INSTANCES];
#endif

byte changes, raises, forgets;

/* Scratch, which is 0 between steps. */
byte n, k, b, lo1, hi1, lo2, hi2, base, end, low;
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
#define REGISTERED(i) ((etcd.registered / BIT(i)) % 2)
#ifdef MUTANT_NO_REGISTRATION
#define STILL_REGISTERED(i) true
#else
#define STILL_REGISTERED(i) REGISTERED(i)
#endif

/* The conditions of a lease that is sent by i under stamp known, over the mark
 * (next, markStamp). The mark's value stands for its mod revision too: no two
 * versions of a mark have one next. */
inline compare(i, known, next0, stamp0) {
	ok = SAME_LAYOUT(known) && SAME_EPOCH(known) && STILL_REGISTERED(i) &&
		etcd.next[ROOM(i)] == next0 && etcd.stamp[ROOM(i)] == stamp0
}

#if LEAVES
#define WROTE etcd.writes++
#else
#define WROTE skip
#endif

/* A mark is written here, when leased, and in raise. */
inline write(i, known, after) {
#if RESTORES && MARGIN
	in[i].steps = in[i].steps + 1 + LACKS(ROOM(i));
	in[i].blind = in[i].blind + 1 + LACKS(ROOM(i));
#endif
	etcd.next[ROOM(i)] = after;
	etcd.stamp[ROOM(i)] = known;
	WROTE
}

/* A mark is raised: the stamp stays, and with it the total. */
inline raise(r, least) {
	if
	:: least > etcd.next[r] ->
		etcd.next[r] = least;
#ifdef MUTANT_RAISE_STAMPS
		etcd.stamp[r] = NOW
#endif
	:: else
	fi
}

/* It sees its room's mark and the floor, which is in low. */
inline learnMark(i) {
	in[i].next = etcd.next[ROOM(i)];
	in[i].markStamp = etcd.stamp[ROOM(i)];
	in[i].at = leasing;
#ifdef MUTANT_FLOOR_BEFORE_LAYOUT
	if
	:: SAME(in[i].markStamp, in[i].stamp) -> in[i].floor = 0; in[i].floored = 0
	:: else
	fi;
#else
#ifdef MUTANT_NO_FLOOR
	in[i].floor = 0;
#else
	in[i].floor = (SAME(in[i].markStamp, in[i].stamp) -> 0 : low);
#endif
#endif
	low = 0
}

/* It forgets the mark: the outcome of its last try is unknown. */
inline forgetMark(i) {
	in[i].at = reading;
	in[i].next = 0; in[i].markStamp = 0; in[i].floor = 0; in[i].segment = 0; in[i].retry = 0
}

inline die(i) {
	forgetMark(i);
	in[i].stamp = 0; in[i].range = 0;
#if RUNS
	in[i].barred = 0; in[i].fresh = 1; in[i].raises = 0; in[i].rooms = 0;
#ifdef ORPHANS
	in[i].held = 0
#endif
#endif
}

#if RUNS
#define JOINED(i, e) ((in[i].joined / BIT(e)) % 2)
#define LISTED(i, e) ((ep[e].listed / BIT(i)) % 2)
/* Whether an epoch left i out. */
#ifdef MUTANT_BARRIER_IS_ENOUGH
#define ORPHANED(i, e) (in[i].fresh || !JOINED(i, ep[e].stopped))
#else
#ifdef MUTANT_LISTED_IS_ENOUGH
#define ORPHANED(i, e) (in[i].fresh || !LISTED(i, e))
#else
#define ORPHANED(i, e) (in[i].fresh || !LISTED(i, e) || !JOINED(i, ep[e].stopped))
#endif
#endif
/* Whether the recover that began epoch e took the memory of i: then it raised the mark of i's
 * room before the epoch began, and i raises nothing. */
#ifdef MUTANT_KNOWN_TO_ANY_EPOCH
#define KNOWN(i, e) (LISTED(i, e) || e && LISTED(i, e - 1))
#else
#define KNOWN(i, e) LISTED(i, e)
#endif
/* Whether the mark of room r keeps the room off all that i accepted. */
#ifdef MUTANT_COVERED_BY_THE_WHOLE_MARGIN
#define COVERS(r, i) (!MEMBER(r) || etcd.next[r] + ep[etcd.epoch].total * SPAN >= in[i].told)
#else
#define COVERS(r, i) (!MEMBER(r) || REACH(r) >= in[i].told)
#endif
#ifdef MUTANT_ORPHAN_LOOKS_AT_ITS_OWN
#define COVERED(i) COVERS(ROOM(i), i)
#else
#ifdef MUTANT_ORPHAN_LOOKS_AT_THE_PRESENT_FLOOR
#define COVERED(i) (COVERS(A, i) && COVERS(B, i) || FLOOR >= in[i].told)
#else
#ifdef ORPHANS
/* ... or the floor when the epoch began: each room's first lease lies above it. */
#define COVERED(i) (COVERS(A, i) && COVERS(B, i) || ep[etcd.epoch].floor >= in[i].told)
#else
#define COVERED(i) (COVERS(A, i) && COVERS(B, i))
#endif
#endif
#endif
/* Evidence: an epoch older than the latest that i was in, be it one it was in
 * or one that it never saw (its layout version is not above the highest known). */
#ifdef MUTANT_UNSEEN_IS_NEW
#define EVIDENCE(i) (JOINED(i, etcd.epoch) && in[i].joined >= BIT(etcd.epoch + 1))
#else
#define EVIDENCE(i) (in[i].joined >= BIT(etcd.epoch + 1))
#endif
#if ROLLBACKS
#define MAY_MEET(i) (!EVIDENCE(i) && !(in[i].barred && JOINED(i, etcd.epoch)))
#else
#define MAY_MEET(i) (!(in[i].barred && JOINED(i, etcd.epoch)))
#endif
#else
#define MAY_MEET(i) true
#endif

/* The beat is looked at before a lease over a new connection, and a restore
 * ends all connections: so an instance leases over one that was checked, or
 * sees that etcd went back. */
#if RESTORES && !defined(LIMIT_UNSEEN_RESTORE)
#define CHECKED (!behind)
#else
#define CHECKED true
#endif

/* Instance i sees the epoch and layout that hold, its mark, and the floor. */
inline learn(i) {
	in[i].stamp = NOW;
	in[i].range = etcd.range[ROOM(i)];
	low = FLOOR; learnMark(i)
}

#if RUNS
inline join(i) {
	in[i].joined = in[i].joined | BIT(etcd.epoch);
#ifdef ORPHANS
	/* It has met the epoch: it holds nothing that another has, unless that one was left out. */
	assert(!(in[i].held & in[i].taken) || ORPHANED(1 - i, etcd.epoch));
#endif
	skip
}

/* It meets an epoch that it was not in. */
inline meet(i) {
	if
	:: ORPHANED(i, etcd.epoch) ->
		printf("%c%d: was left out of epoch %d\n", 97 + ROOM(i), i, etcd.epoch);
#if defined(ORPHANS) && !defined(MUTANT_ORPHAN_KEEPS_CHAIN)
		in[i].held = 0;
#endif
#ifndef MUTANT_ORPHAN_TAKES_ANSWER
		in[i].segment = 0; in[i].retry = 0;
#endif
		if
		:: in[i].told && !KNOWN(i, etcd.epoch) && !COVERED(i) ->
			in[i].raises = 1; in[i].rooms = etcd.ever;
#ifdef MUTANT_JOURNAL_FIRST
			in[i].joined = in[i].joined | BIT(etcd.epoch)
#endif
		:: else -> in[i].raises = 0; in[i].rooms = 0; join(i)
		fi
	:: else -> join(i)
	fi;
	in[i].barred = 0
}
#endif

/* An ID that is issued twice is a duplicate, but for the residual risk that the
 * design names: one of the two instances was left out of the epoch under which
 * the other leased it, and had not joined that yet. */
#ifdef ORPHANS
#define EXCUSED (in[0].taken | in[1].taken)
#else
#define EXCUSED 0
#endif
inline issue(i, ids) {
	if
	:: ids & issued & ~EXCUSED ->
		printf("%c%d: issues IDs %x of which %x were issued before\n", 97 + ROOM(i), i, ids, ids & issued)
	:: else -> printf("%c%d: issues IDs %x\n", 97 + ROOM(i), i, ids)
	fi;
	assert(!(ids & issued & ~EXCUSED)); /* no ID twice */
	issued = issued | ids
}

/* What the oracle notes when i leases seg under the epoch that holds. */
inline note(i) {
#ifdef ORPHANS
	k = 0;
	do
	:: k < INSTANCES ->
		if
		:: k != i && !JOINED(k, etcd.epoch) && ORPHANED(k, etcd.epoch) ->
			in[k].taken = in[k].taken | (seg & (in[k].had | in[k].segment))
		:: else
		fi;
		k++
	:: else -> break
	od;
	k = 0;
#endif
	skip
}

#if RUNS
#define MAY_LEASE(i) (CHECKED && !in[i].barred && !in[i].raises)
#else
#define MAY_LEASE(i) true
#endif

/* Instance i. It may stand still at any point for as long as it likes, and go
 * on: that is an interleaving. */
proctype instance(byte i) {
	do
	/* 1, 2, 3. It learns epoch and layout, and then reads its mark and the floor
	 * on condition that both hold: so it is as if it read all at once. It does so
	 * when it likes after a change; and again when it does not know its mark. */
	:: atomic {
		!etcd.halted && MAY_MEET(i) && (in[i].at == reading || in[i].at == leasing && in[i].stamp != NOW) ->
#if RUNS
		if
		:: !JOINED(i, etcd.epoch) && !(in[i].raises && in[i].stamp == NOW) -> meet(i)
		:: else -> in[i].barred = 0
		fi;
#endif
		learn(i);
		printf("%c%d: learns epoch %d, layout %d, its mark %d and floor %d\n", 97 + ROOM(i), i,
			etcd.epoch, etcd.revision, in[i].next, in[i].floor)
	}
#if RUNS
	/* The same while an answer is under way: it is taken only if the epoch is
	 * still the one of its request. */
	:: atomic {
		!etcd.halted && MAY_MEET(i) && in[i].at == answered && !JOINED(i, etcd.epoch) ->
		meet(i);
#ifdef MUTANT_ORPHAN_TAKES_ANSWER
		skip
#else
		learn(i)
#endif
	}
	/* It was left out: it raises the marks of all rooms in one transaction that
	 * compares epoch and layout, and only then joins. */
	:: atomic {
		in[i].raises && !etcd.halted &&
#ifdef MUTANT_RAISE_UNDER_ANY_LAYOUT
		EPOCH(in[i].stamp) == etcd.epoch ->
#else
		in[i].stamp == NOW ->
#endif
		d_step {
#ifndef MUTANT_ORPHAN_RAISES_ITS_OWN
			if
			:: in[i].rooms & BIT(A) -> raise(A, in[i].told)
			:: else
			fi;
			if
			:: in[i].rooms & BIT(B) -> raise(B, in[i].told)
			:: else
			fi;
#endif
			raise(ROOM(i), in[i].told);
			in[i].raises = 0; in[i].rooms = 0
		}
		join(i);
		learn(i);
		printf("%c%d: raises all marks to %d, and joins epoch %d\n", 97 + ROOM(i), i, in[i].told, etcd.epoch)
	}
#endif
#if SNAPSHOTS
	/* The floor from a member that has fallen behind. A mark that is too old would
	 * be refused later, and a newer one shown: so it is the newer one at once. */
	:: atomic {
#ifdef MUTANT_STALE_FLOOR
		oldStamp && in[i].stamp && in[i].at == reading ->
#else
		oldStamp == in[i].stamp && in[i].stamp && in[i].at == reading ->
#endif
		low = oldFloor; learnMark(i);
		printf("%c%d: reads floor %d from the member that is behind\n", 97 + ROOM(i), i, oldFloor)
	}
#endif
#ifdef MUTANT_FLOOR_BEFORE_LAYOUT
	/* It reads the floor by itself, before the layout that it is used under. */
	:: d_step { !in[i].floored && !etcd.halted -> in[i].floor = FLOOR; in[i].floored = 1 }
#endif
	/* 4, 5. It sends the lease and etcd decides. In between nothing changes that
	 * the request is made of, so that it is made when it arrives. */
	:: atomic {
#ifdef MUTANT_FLOOR_BEFORE_LAYOUT
		(SAME(in[i].markStamp, in[i].stamp) || in[i].floored) &&
#endif
		in[i].at == leasing && in[i].range && MAY_LEASE(i) ->
		base = in[i].next;
#ifdef MUTANT_RETRY_FORGETS
		base = (in[i].retry -> 0 : base);
#endif
		base = MAX(MAX(base, START), in[i].floor);
		select(n : 1 .. STEP);
		cut(in[i].range);
		compare(i, in[i].stamp, in[i].next, in[i].markStamp);
		if
		:: seg && ok -> /* done; the answer is under way */
			d_step {
				write(i, in[i].stamp, end);
				note(i);
				in[i].at = answered; in[i].segment = seg;
				in[i].next = end; in[i].markStamp = in[i].stamp;
				in[i].floor = 0; in[i].retry = 0;
			}
			printf("%c%d: lease of %d IDs from %d commits, mark %d\n", 97 + ROOM(i), i, n, base, end)
		:: seg && ok -> /* done; the answer is lost */
			write(i, in[i].stamp, end);
			forgetMark(i);
			printf("%c%d: lease of %d IDs from %d commits, mark %d; the answer is lost\n", 97 + ROOM(i), i, n, base, end)
#ifndef NO_RESENT
		:: seg && ok -> /* done; sent again, and refused by its own doing */
			write(i, in[i].stamp, end);
			low = FLOOR; learnMark(i);
			in[i].retry = 1;
			printf("%c%d: lease of %d IDs from %d commits, mark %d; it arrives twice, and is refused\n",
				97 + ROOM(i), i, n, base, end)
#endif
		:: seg && !ok && in[i].stamp == NOW && !etcd.halted -> /* refused; the answer shows the mark */
			low = FLOOR; learnMark(i);
			in[i].retry = 1;
			printf("%c%d: lease of %d IDs from %d is refused; mark %d\n", 97 + ROOM(i), i, n, base, in[i].next)
#if LATE
		:: seg && !late.end -> /* it is under way when its sender gives up */
			late.by = i; late.stamp = in[i].stamp; late.next = in[i].next; late.markStamp = in[i].markStamp;
			late.end = end; late.segment = seg;
			forgetMark(i);
			printf("%c%d: lease of %d IDs from %d is under way; its sender gives up\n", 97 + ROOM(i), i, n, base)
#endif
#ifdef MUTANT_UNKNOWN_IS_SUCCESS
		:: seg -> /* lost */
			in[i].at = answered; in[i].segment = seg;
			in[i].next = end; in[i].markStamp = in[i].stamp; in[i].floor = 0;
			printf("%c%d: lease of %d IDs from %d is lost on the way and taken for done\n", 97 + ROOM(i), i, n, base)
#endif
		:: else -> forgetMark(i); /* lost on the way, or refused; or the limit */
			printf("%c%d: lease of %d IDs from %d is refused, or at the limit\n", 97 + ROOM(i), i, n, base)
		fi;
		clean()
	}
	/* 6. It takes the answer; or never does. Where chains are not held, it issues
	 * all of the segment at once: an ID that is issued later, or never, collides
	 * with no more than that. */
	:: atomic {
		in[i].at == answered ->
#ifdef ORPHANS
		in[i].held = in[i].held | in[i].segment;
		in[i].had = in[i].had | in[i].segment;
		printf("%c%d: accepts IDs %x\n", 97 + ROOM(i), i, in[i].segment);
#else
		issue(i, in[i].segment);
#endif
#if RUNS
		in[i].told = MAX(in[i].told, in[i].next);
#if RESTORES && MARGIN
		in[i].blind = 0;
#endif
#endif
		in[i].segment = 0;
		in[i].at = leasing
	}
#ifdef ORPHANS
	:: atomic { in[i].held -> issue(i, in[i].held); in[i].held = 0 }
#endif
#ifndef NO_KILLS
	/* It is killed, and starts again: with its journal, or without it. */
	:: atomic {
		in[i].stamp ->
		die(i);
		printf("%c%d: is killed, and starts again\n", 97 + ROOM(i), i)
	}
#endif
#ifdef LOST_JOURNAL
	:: atomic {
		in[i].joined && !in[i].gap ->
		die(i);
		d_step {
			do
			:: in[i].joined >= BIT(in[i].gap + 1) -> in[i].gap++
			:: else -> break
			od;
			in[i].joined = 0; in[i].told = 0
		}
		printf("%c%d: is killed, and starts again without its journal\n", 97 + ROOM(i), i)
	}
#endif
#if LEAVES
	/* It leaves in good order: it deletes its registration, over a checked
	 * connection, and issues nothing more. Others see it, and at which revision. */
	:: atomic {
#ifndef MUTANT_LEAVE_UNCHECKED
		CHECKED &&
#endif
		in[i].at != gone && in[i].stamp && REGISTERED(i) && in[i].stamp == NOW && !etcd.halted ->
		etcd.registered = etcd.registered & ~BIT(i);
		WROTE;
		left[i].epoch = etcd.epoch; left[i].writes = etcd.writes;
		die(i);
		in[i].at = gone;
		printf("%c%d: leaves at revision %d\n", 97 + ROOM(i), i, etcd.writes);
		break
	}
#endif
	od
}

#ifdef MUTANT_FORGET_UNCHECKED
#define MAY_FORGET true
#else
#define MAY_FORGET (!etcd.halted && CHECKED)
#endif

#if RESTORES || ROLLBACKS
/* The beat is as late as can be when a backup is taken. An instance that finds
 * etcd behind does not write it. */
inline writeBeat() {
#if LEAVES
	etcd.beat = (CHECKED && !etcd.halted -> etcd.writes : etcd.beat)
#else
	skip
#endif
}

inline taken(j) {
#if RESTORES && MARGIN
	k = 0;
	do
	:: k < INSTANCES -> in[k].steps = 0; in[k].lost = 0; in[k].blind = 0; k++
	:: else -> break
	od;
	k = 0;
#endif
	printf("backup %d is taken\n", j)
}
#endif

/* A rollback of raft's own data is one that the design sees: to before an epoch
 * that every instance has been in. */
#if ROLLBACKS
#define IN_LATEST(i) (in[i].joined >= BIT(etcd.epoch) && in[i].joined >= BIT(backup[0].epoch + 1))
#define MAY_RESTORE (IN_LATEST(0) && IN_LATEST(1))
#else
#define MAY_RESTORE true
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
		printf("operator: raises the mark of room %c to %d\n", 97 + k, base);
		clean()
	}
#endif
#if SNAPSHOTS
	:: atomic {
		snapshots < SNAPSHOTS ->
		snapshots++;
		oldStamp = NOW; oldFloor = FLOOR;
		printf("a member falls behind: it shows floor %d under layout %d\n", oldFloor, etcd.revision)
	}
	:: d_step { oldStamp -> oldStamp = 0; oldFloor = 0 }
#endif
#if LATE
	:: atomic {
		late.end ->
		compare(late.by, late.stamp, late.next, late.markStamp);
		if
		:: ok ->
			write(late.by, late.stamp, late.end);
#ifdef LIMIT_CARRIED
			/* its answer is taken, though it came over another connection */
			if
			:: in[late.by].at == reading && in[late.by].stamp == late.stamp && !in[late.by].barred ->
				in[late.by].at = answered; in[late.by].segment = late.segment;
				in[late.by].next = late.end; in[late.by].markStamp = late.stamp
			:: else
			fi
#endif
		:: else
		fi;
		printf("late: the lease of %d arrives (%d), mark %d\n", late.by, ok, late.end);
		clean();
		late.by = 0; late.stamp = 0; late.next = 0; late.markStamp = 0; late.end = 0; late.segment = 0
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
#if RESTORES || ROLLBACKS
	:: d_step {
		!backup[0].epoch ->
		writeBeat();
		copy(etcd, backup[0]);
		taken(0)
	}
#if BACKUPS > 1
	:: d_step {
#ifdef HALTED_BACKUP
		etcd.halted &&
#endif
		backup[0].epoch && !backup[1].epoch ->
		writeBeat();
		copy(etcd, backup[1]);
		taken(1)
	}
#endif
	:: atomic {
		backup[0].epoch && restores < RESTORES + ROLLBACKS && MAY_RESTORE ->
#if BACKUPS > 1
		if
		:: k = 0
		:: backup[1].epoch -> k = 1
		fi;
#endif
		d_step {
			restores++;
			copy(backup[k], etcd);
			k = 0;
#if RESTORES
			behind = 1;
#endif
#if RESTORES && MARGIN
			do
			:: k < INSTANCES ->
				in[k].lost = in[k].lost + in[k].steps; in[k].steps = 0; k++
			:: else -> break
			od;
			k = 0;
#endif
#if SNAPSHOTS
			oldStamp = 0; oldFloor = 0;
#endif
			printf("etcd goes back: epoch %d, halted %d, layout %d, marks %d %d\n",
				etcd.epoch, etcd.halted, etcd.revision, etcd.next[A], etcd.next[B])
		}
	}
#endif
	od
}

#if RUNS
/* March recover. */
byte runs;			/* of recover, ever */

#if RESTORES || ROLLBACKS
#define LIFE restores
#else
#define LIFE 0
#endif

/* Left in good order, at a revision not above the one that the beat of the
 * restored store carries. */
#if LEAVES
#ifdef MUTANT_LEFT_AT_ANY_REVISION
#define LEFT(i) (left[i].epoch == etcd.epoch)
#else
#define LEFT(i) (left[i].epoch == etcd.epoch && left[i].writes <= etcd.beat)
#endif
#define MISSING(i) (!(asked & BIT(i)) && !LEFT(i)) /* others remember it where the store does not */
#else
#ifdef LOST_JOURNAL
#ifdef MUTANT_JOURNAL_NOT_MISSED
#define MISSING(i) (REGISTERED(i) && !(asked & BIT(i)))
#else
#define MISSING(i) (REGISTERED(i) && (!(asked & BIT(i)) || in[i].gap && in[i].gap >= etcd.epoch))
#endif
#else
#define MISSING(i) (REGISTERED(i) && !(asked & BIT(i)))
#endif
#endif

/* The operator's guess is right: the margin covers what a restore took from
 * the instances that are missing. */
#if RESTORES && MARGIN && !defined(LIMIT_SMALL_MARGIN)
#define LOST(i) (MISSING(i) -> in[i].lost : in[i].blind)
#define MARGIN_COVERS(sum) (!restores || LOST(0) + LOST(1) <= (sum) - ep[backup[0].epoch].total)
#else
#define MARGIN_COVERS(sum) true
#endif
/* What an unlisted instance, or one without margin, may hold is not known: where
 * no residual risk is excused and there is no margin, recover has to hear of all. */
#if MARGIN || defined(ORPHANS) || defined(LIMIT_LEFT_OUT)
#define MAY_GO_ON true
#else
#define MAY_GO_ON (!MISSING(0) && !MISSING(1) && (INSTANCES < 3 || !MISSING(INSTANCES - 1)))
#endif

inline hear(i) {
	tell[ROOM(i)] = MAX(tell[ROOM(i)], in[i].told);
	knows = knows | in[i].joined
}

inline bar(i) {
#ifndef MUTANT_NO_BARRIER
	in[i].barred = nonce;
	in[i].raises = 0; in[i].rooms = 0;
	forgetMark(i);
#endif
	in[i].fresh = 0
}

/* The question, which carries the halt's nonce. An instance whose etcd shows
 * that halt says what it accepted; it has no epoch from then on, so that it takes
 * no answer to what it sent before. What is still on its way to etcd is refused
 * there, for the halted epoch. */
inline ask(i) {
	if
	:: etcd.halted == nonce ->
		d_step {
			asked = asked | BIT(i);
			hear(i);
			bar(i);
			printf("recover: %c%d answers %d\n", 97 + ROOM(i), i, in[i].told)
		}
#ifdef LOST_ANSWERS
	:: etcd.halted == nonce ->
		d_step { bar(i); printf("recover: %c%d answers, and the answer is lost\n", 97 + ROOM(i), i) }
#endif
#ifdef REFUSED
	/* It does not see that halt: it answers unbarred, and counts as left out. */
	:: d_step {
		hear(i);
#ifdef MUTANT_REFUSED_COUNTS
		asked = asked | BIT(i);
#endif
		printf("recover: %c%d answers %d, unbarred\n", 97 + ROOM(i), i, in[i].told)
	}
#endif
	fi
}

#if defined(MUTANT_NO_BARRIER) || defined(MUTANT_REFUSED_COUNTS)
#define ANSWER_STANDS(i) true
#else
#define ANSWER_STANDS(i) (!(asked & BIT(i)) || in[i].barred == nonce || in[i].fresh)
#endif
#if INSTANCES == 2
#define ANSWERS_STAND (ANSWER_STANDS(0) && ANSWER_STANDS(1))
#else
#define ANSWERS_STAND (ANSWER_STANDS(0) && ANSWER_STANDS(1) && ANSWER_STANDS(2))
#endif

inline raiseTold() {
	raise(A, tell[A]);
	raise(B, tell[B]);
	printf("recover %d: marks %d %d\n", nonce, etcd.next[A], etcd.next[B])
}

proctype recover() {
	byte nonce, asked, knows, life, tell[2];
	bit raised;
	do
	/* 1. It halts, over any other halt; or again, where it broke off. */
	:: atomic {
#ifdef EARLY
		restores &&
#endif
		runs < RUNS ->
		runs++;
		nonce = runs; life = LIFE; asked = 0; knows = 0; tell[A] = 0; tell[B] = 0; raised = 0;
		etcd.halted = nonce;
		printf("recover %d: halts\n", nonce)
	}
	:: atomic { nonce && !raised && !(asked & BIT(0)) && in[0].at != gone -> ask(0) }
	:: atomic { nonce && !raised && !(asked & BIT(1)) && in[1].at != gone -> ask(1) }
#if INSTANCES > 2
	:: atomic { nonce && !raised && !(asked & BIT(2)) && in[2].at != gone -> ask(2) }
#endif
	/* 4. It raises the mark of the room that leased. */
#if BACKUPS > 1
	:: d_step {
		nonce && !raised && MAY_GO_ON ->
		raised = 1;
		raiseTold()
	}
#endif
	/* 5. The new epoch, if the halt is still its own, with a fresh beat, in the
	 * life of the store in which it halted and raised. */
	:: d_step {
#ifndef MUTANT_RECOVER_OVER_A_RESTORE
		life == LIFE &&
#endif
#if BACKUPS > 1
		raised && /* else in one step: what is raised and not used is no fault */
#endif
		nonce && MAY_GO_ON && etcd.halted == nonce && ANSWERS_STAND ->
#if BACKUPS == 1
		raiseTold();
#endif
		knows = knows | BIT(etcd.epoch);
		k = 0;
		do
		:: k < EPOCHS ->
			if
			:: knows & BIT(k) -> n = MAX(n, ep[k].total); b = k
			:: else
			fi;
			k++
		:: else -> break
		od;
		k = 0;
		base = 0;
		if
		:: MISSING(0) || MISSING(1) || INSTANCES > 2 && MISSING(INSTANCES - 1) -> base = MARGIN
		:: else
		fi;
		if
		:: MARGIN_COVERS(n + base) ->
			epochs++;
			ep[epochs].total = n + base;
			ep[epochs].last = base;
			ep[epochs].listed = asked;
#ifdef MUTANT_STOPPED_OF_THE_STORE
			ep[epochs].stopped = etcd.epoch;
#else
			ep[epochs].stopped = b;
#endif
#ifdef MUTANT_EPOCH_COUNTS
			etcd.epoch++;
#else
			etcd.epoch = epochs;
#endif
			etcd.halted = 0;
			etcd.revision++;
#ifndef MUTANT_FORGOTTEN_ROOM
			etcd.ever = etcd.ever | (tell[A] -> BIT(A) : 0) | (tell[B] -> BIT(B) : 0);
#endif
#ifdef ORPHANS
			ep[epochs].floor = FLOOR;
#endif
#if RESTORES
			behind = 0;
#endif
#if LEAVES
			etcd.beat = etcd.writes;
#endif
			printf("recover %d: writes epoch %d, total %d, listed %x, stopped %d\n",
				nonce, etcd.epoch, n + base, asked, ep[epochs].stopped)
		:: else
		fi;
		b = 0; n = 0; base = 0;
		nonce = 0; asked = 0; knows = 0; life = 0; tell[A] = 0; tell[B] = 0; raised = 0
	}
	od
}
#endif

init {
	atomic {
#ifdef A_FIRST
		d_step { etcd.range[A] = BIT(IDS) - 1; etcd.ever = BIT(A); b = 1 }
#else
		anyLayout();
#endif
		etcd.revision = 1;
		etcd.epoch = 1;
		etcd.registered = BIT(INSTANCES) - 1;
		epochs = 1;
#ifdef EARLY
		copy(etcd, backup[0]);
#endif
		printf("layout 1: boundary %d, a %x, b %x\n", b, etcd.range[A], etcd.range[B]);
		k = 0;
		do
		:: k < INSTANCES ->
			in[k].at = reading;
#if RUNS && !ROLLBACKS
			in[k].joined = BIT(1); /* where it leased nothing, as if it had not */
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

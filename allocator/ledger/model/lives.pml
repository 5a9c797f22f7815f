/*
 * The lives of a name, for the model checker spin: section 3.5 of the design.
 * README.md beside it goes through it; march.pml is the model of segments.
 *
 * One name, two rooms with the residues 0 and 1 modulo 2, of which the second comes
 * later. Tags of the name are created, with any of two steps and starts, lease, skip, and
 * are deleted. A restore takes the store back to a backup, and recover goes on without
 * all that leased since, with a margin of as many steps. march.pml has the fates of
 * transactions; here each is one step.
 *
 * MUTANT_... breaks the protocol in one place, LIMIT_... takes away something
 * that it assumes. Each must make an assertion fail.
 */

#ifndef IDS
#define IDS 12		/* 31 at most */
#endif
#ifndef LIVES
#define LIVES 2
#endif
#ifndef RESTORES
#define RESTORES 1
#endif
#ifndef LOST
#define LOST 1		/* leases that one restore may lose */
#endif
#ifndef STARTS
#define STARTS 3	/* the other start than 0 */
#endif
#ifndef STEP
#define STEP 3		/* the other step than 1 */
#endif
#ifndef SKIPS
#define SKIPS 2		/* where a skip of all rooms goes */
#endif

#define A 0
#define B 1
#define MAX(x, y) ((x) > (y) -> (x) : (y))

mtype = { none, living, dead };

/* What etcd holds, and a restore takes back. */
typedef Store {
	mtype key;
	byte start;
	byte ahead;		/* the skip of all rooms; 0 for none */
	byte step;		/* the tag's max_step */
	byte largest;		/* that the name ever had, as far as the key knows */
	byte base;		/* the base total */
	byte least;
	byte next[2];		/* marks */
	byte total[2];
	byte stamp[2]		/* 0: there is no mark */
}
Store etcd;
Store backup;
Store nothing;

byte total;			/* margin total: no recover lets it fall */
byte stamp = 1;			/* of the epoch and the layout in force: a new one each time */
byte ever = 1;			/* rooms that ever were: recover puts back those that the store forgot */
#ifdef MUTANT_SKIP_OF_ROOMS
byte skipped;			/* the rooms that there were at the skip */
#define SKIP(r) ((r) < skipped -> etcd.ahead : 0)
#else
#define SKIP(r) etcd.ahead
#endif

byte lives;
byte restores;
bit backed;			/* there is a backup; since then: */
byte leased;			/* leases, */
bit changed;			/* settings that margins follow from did, */
bit unknown;			/* and a lease was made by them, which nothing in the backup tells */

int issued;			/* the oracle: IDs, as bits */

inline copy(to, from)
{
	to.key = from.key; to.start = from.start; to.ahead = from.ahead; to.step = from.step;
	to.largest = from.largest; to.base = from.base; to.least = from.least;
	to.next[A] = from.next[A]; to.total[A] = from.total[A]; to.stamp[A] = from.stamp[A];
	to.next[B] = from.next[B]; to.total[B] = from.total[B]; to.stamp[B] = from.stamp[B]
}

#ifdef MUTANT_LEAST_IGNORED
#define LEAST 0
#else
#define LEAST etcd.least
#endif

/* How far room r's mark reaches: next + d. No lease of s IDs spans more than (s + 1) * 2. */
#define BASE(r) MAX(etcd.start, SKIP(r))
#define NEXT(r) (etcd.stamp[r] -> etcd.next[r] : BASE(r))
#define TOTAL(r) (etcd.stamp[r] -> etcd.total[r] : etcd.base)
#define REACH(r) (TOTAL(r) < total -> \
	MAX(MAX(NEXT(r), BASE(r)), LEAST) + (total - TOTAL(r)) * (etcd.largest + 1) * 2 : NEXT(r))

inline lease(r)
{
	d_step {
		from = MAX(etcd.next[r], BASE(r));
		if
		:: etcd.stamp[r] != stamp ->
			from = MAX(from, REACH(A));
			if :: ever > 1 -> from = MAX(from, REACH(B)) :: else fi
		:: else
		fi;
		from = from + ((from % 2) != r -> 1 : 0)
	}
	if
	:: n = 1
	:: etcd.step > 1 -> n = STEP
	fi;
	if
	:: from + (n - 1) * 2 < IDS ->
		d_step {
			assert(from >= etcd.ahead);
			do
			:: n > 0 ->
				assert(!(issued & (1 << from)));
				issued = issued | (1 << from);
				from = from + 2;
				n--
			:: else -> break
			od;
			etcd.next[r] = from - 1;
			etcd.total[r] = total;
			etcd.stamp[r] = stamp;
			leased = leased + backed;
			unknown = unknown | changed;
		}
	:: else /* the tag is at its limit */
	fi;
	from = 0; n = 0
}

inline create()
{
	d_step {
		if
#ifdef MUTANT_TOMBSTONE_IGNORED
		:: etcd.key == dead -> etcd.largest = 0; etcd.base = 0; etcd.least = 0
#endif
#ifdef MUTANT_STEP_FORGOTTEN
		:: etcd.key == dead -> etcd.largest = 0
#endif
#ifdef MUTANT_BASE_TOTAL_RAISED
		:: etcd.key == dead -> etcd.base = total
#endif
		:: else
		fi;
		etcd.key = living; etcd.ahead = 0; lives++; changed = backed
	}
	if
	:: etcd.start = 0
	:: etcd.start = STARTS
	fi;
	if
	:: etcd.step = 1
	:: etcd.step = STEP
	fi;
	etcd.largest = MAX(etcd.largest, etcd.step)
}

inline delete()
{
	d_step {
		if
#ifdef MUTANT_UNUSED_BY_MARKS
		:: !etcd.stamp[A] && !etcd.stamp[B] ->
#else
		:: !etcd.stamp[A] && !etcd.stamp[B] && etcd.base == total ->
#endif
			etcd.key = none; etcd.largest = 0; etcd.base = 0; etcd.least = 0
		:: else ->
			etcd.key = dead; etcd.least = MAX(etcd.least, MAX(etcd.start, etcd.ahead))
		fi;
		etcd.start = 0; etcd.ahead = 0; etcd.step = 0
	}
}

init {
	byte from, n;
	etcd.key = none;
	backup.key = none;
	nothing.key = none;
	do
	:: atomic { etcd.key != living && lives < LIVES -> create() }
	:: atomic { etcd.key == living -> delete() }
	:: atomic { etcd.key == living -> lease(A) }
	:: atomic { etcd.key == living && ever > 1 -> lease(B) }
	:: atomic { etcd.key == living && etcd.ahead < SKIPS ->
		etcd.ahead = SKIPS; changed = backed;
#ifdef MUTANT_SKIP_OF_ROOMS
		skipped = ever
#endif
	}
	:: atomic { ever == 1 -> ever = 2; stamp++ }
	:: atomic { !backed && restores < RESTORES -> copy(backup, etcd); backed = 1 }
#ifdef LIMIT_SETTINGS_LOST
	:: atomic { backed && leased <= LOST ->
#else
	:: atomic { backed && leased <= LOST && !unknown ->
#endif
		copy(etcd, backup);
		total = total + leased; stamp++; restores++;
		backed = 0; leased = 0; changed = 0; unknown = 0;
		copy(backup, nothing)	/* so that states differ by it no more */
	}
	od
}

/*
 * The order of a tag's calls, for the model checker spin: section 3.6 of the design. README.md beside it goes through
 * it; march.pml is the model of segments, on which this one stands: all rules that make IDs unique hold.
 *
 * One tag, one room, a few instances that take the tag in turn, a clock that all of them read. What is one step: a
 * transaction of etcd, and what one process does by itself between two of them. A request is done in one step, and its
 * answer comes in another one, or never. All else interleaves, and the clock goes on at any moment. With two ROOMS it is
 * the order of the cluster: each instance is in a room of its own, and any of them takes the key at any time, as if its
 * room had become the home just then.
 *
 * MUTANT_... breaks the protocol in one place. Each must make an assertion fail.
 */

#ifndef INSTANCES
#define INSTANCES 2
#endif
#ifndef ROOMS
#define ROOMS 1		/* or 2 */
#endif
#ifndef TIME
#define TIME 5		/* the clock's last tick */
#endif
#ifndef IDS
#define IDS 5
#endif
#ifndef TENURES
#define TENURES 3
#endif
#ifndef RESTORES
#define RESTORES 0	/* of a backup, each with a recover that every instance answers */
#endif
#ifndef CALLS
#define CALLS 2		/* an inversion is one of two calls */
#endif
#ifndef HOLD
#define HOLD 1		/* ticks */
#endif
#ifndef STEP
#define STEP 1		/* IDs of a lease */
#endif

/* What etcd holds, and a restore takes back. */
typedef Store {
	byte epoch;
	byte next[ROOMS];	/* the rooms' marks */
	byte nonce;		/* the tenure in the key, 0 for none; */
	byte taken;		/* the epoch in which it was taken */
	bit released;
	byte rest;		/* with an end above 0: the first ID that it left */
	byte end;
	byte room		/* of the tenure in the key */
}
Store etcd;
#define copy(source, to) \
	to.epoch = source.epoch; to.next[0] = source.next[0]; to.next[LAST_ROOM] = source.next[LAST_ROOM]; \
	to.nonce = source.nonce; to.taken = source.taken; to.released = source.released; to.rest = source.rest; \
	to.end = source.end; to.room = source.room

#define LAST_ROOM (ROOMS - 1)
#define ROOM(i) (i % ROOMS)
#define largest(a, b) (a > b -> a : b)

/* A request: */
mtype = { none, done };

typedef Instance {
	byte tenure;		/* 0: it does not hold the tag */
	byte epoch;		/* in which it took it */
	byte opens;		/* nothing is issued before */
	byte confirmed;		/* when the last confirmation was sent */
	byte first;		/* the chain: IDs from first up to end, */
	byte end;
	byte least;		/* with two ROOMS: the floor of the tenure's leases, 0 before it was read */
#if RESTORES
	byte told;		/* journal: the end of its leases */
#endif

	mtype take;		/* a take */
	byte takeEpoch, takeSent, takeNonce, takeRest, takeEnd;
	bit takeFree;		/* the key was released in the epoch in force */

	mtype confirm;
	byte confirmSent, confirmFor;
	bit shown;		/* the key showed the tenure */

	mtype lease;
	byte leaseFirst, leaseEnd, leaseFor;

	byte release;		/* a request that is under way: the tenure, 0 for none, */
	byte releaseRest, releaseEnd;

	byte call;		/* 0: none; 1: it came; 2: its ID was taken */
	byte floor;		/* the largest ID that was answered before it came */
	byte id, by		/* its ID, and the tenure of that */
}
Instance in[INSTANCES];

byte now;
byte tenures;			/* ever begun */
byte calls;			/* likewise */
byte highest;			/* the largest ID that was answered */
short answered[ROOMS];		/* the IDs that were, of each room: bit k is ID k; residues keep those of two apart */
#if RESTORES
bit restored;			/* and no recover went through since: no connection was checked */
Store backup;			/* epoch 0: none was taken */
byte epochs, restores;
byte k;
#endif
#ifdef MUTANT_ORDER_STALE_READ
byte stale;			/* the nonce in the key before the last take */
#endif

#if RESTORES
#define LOST restored
#else
#define LOST false
#endif
#ifdef MUTANT_ORDER_UNCHECKED
#define UNSHOWN false
#else
#define UNSHOWN LOST
#endif
#ifdef MUTANT_ORDER_NO_EPOCH
#define IN_FORCE(epoch0) true
#else
#define IN_FORCE(epoch0) (etcd.epoch == epoch0)
#endif
#ifdef MUTANT_ORDER_NO_KEY
#define HELD(i) true
#else
#define HELD(i) (etcd.nonce == in[i].tenure && !etcd.released)
#endif
#ifdef MUTANT_ORDER_OLD_RELEASE
#define FREE etcd.released
#else
#define FREE (etcd.released && etcd.taken == etcd.epoch)
#endif
#ifdef MUTANT_ORDER_OLD_REST
#define REST(i) (etcd.released && etcd.end > 0)
#else
#define REST(i) (FREE && etcd.room == ROOM(i) && etcd.end == etcd.next[ROOM(i)] && etcd.end > 0)
#endif

#if ROOMS > 1
#ifdef MUTANT_ORDER_MARKS_BEFORE_TAKE
#define READS_FLOOR(i) (in[i].tenure == 0)
#else
#define READS_FLOOR(i) (in[i].tenure > 0 && HELD(i) && IN_FORCE(in[i].epoch))
#endif
#ifdef MUTANT_ORDER_MARKS_OF_ONE_ROOM
#define FLOOR(i) etcd.next[ROOM(i)]
#else
#define FLOOR(i) largest(etcd.next[0], etcd.next[1])
#endif
#define HAS_FLOOR(i) (in[i].least > 0)
#else
#define HAS_FLOOR(i) true
#endif
#define BASE(i) largest(etcd.next[ROOM(i)], in[i].least)

/* A request that is done now was sent now, or a tick before. */
inline before(at) {
	if
	:: at = now
	:: now > 0 -> at = now - 1
	fi
}

/* The tenure ends here; so does its chain. */
inline ends(i) {
	in[i].tenure = 0; in[i].epoch = 0; in[i].opens = 0; in[i].confirmed = 0;
#ifndef MUTANT_ORDER_FLOOR_KEPT
	in[i].least = 0;
#endif
#ifndef MUTANT_ORDER_CHAIN_KEPT
	in[i].first = 0; in[i].end = 0;
#endif
}

inline answers(i) { in[i].confirm = none; in[i].confirmSent = 0; in[i].confirmFor = 0; in[i].shown = 0 }
inline forgetsTake(i) {
	in[i].take = none; in[i].takeEpoch = 0; in[i].takeSent = 0; in[i].takeNonce = 0; in[i].takeRest = 0;
	in[i].takeEnd = 0; in[i].takeFree = 0
}
inline forgetsLease(i) { in[i].lease = none; in[i].leaseFirst = 0; in[i].leaseEnd = 0; in[i].leaseFor = 0 }

#ifdef MUTANT_ORDER_GATE_WITHOUT_TENURE
#define SAME_TENURE(i) (in[i].tenure > 0)
#else
#define SAME_TENURE(i) (in[i].tenure > 0 && in[i].by == in[i].tenure)
#endif
#define MAY(i) (SAME_TENURE(i) && now >= in[i].opens && now - in[i].confirmed < HOLD)

proctype instance(byte i) {
	do
	/* Take: done, answered. It was sent at some time before. */
	:: atomic { in[i].tenure == 0 && in[i].take == none && tenures < TENURES ->
		in[i].takeFree = FREE; in[i].takeEpoch = etcd.epoch; before(in[i].takeSent);
		if
		:: REST(i) -> in[i].takeRest = etcd.rest; in[i].takeEnd = etcd.end
		:: else
		fi;
#ifdef MUTANT_ORDER_STALE_READ
		stale = etcd.nonce;
#endif
		tenures++;
		etcd.nonce = tenures; etcd.taken = etcd.epoch; etcd.released = 0; etcd.rest = 0; etcd.end = 0;
		etcd.room = ROOM(i);
		in[i].takeNonce = tenures; in[i].take = done;
		if
		:: LOST -> forgetsTake(i)
		:: else
		fi }
	:: atomic { in[i].take == done ->
		if
		:: true -> /* the answer is lost */
		:: in[i].tenure == 0 ->
			in[i].tenure = in[i].takeNonce; in[i].epoch = in[i].takeEpoch; in[i].confirmed = in[i].takeSent;
#if RESTORES
			in[i].told = largest(in[i].takeEnd, in[i].told);
#endif
#ifdef MUTANT_ORDER_CHAIN_KEPT
			if
			:: in[i].takeEnd > 0 -> in[i].first = in[i].takeRest; in[i].end = in[i].takeEnd
			:: else
			fi;
#else
			in[i].first = in[i].takeRest; in[i].end = in[i].takeEnd;
#endif
#if defined(MUTANT_ORDER_NO_WAIT)
			in[i].opens = 0
#elif defined(MUTANT_ORDER_WAIT_FROM_SENDING)
			in[i].opens = (in[i].takeFree -> 0 : in[i].takeSent + HOLD)
#else
			in[i].opens = (in[i].takeFree -> 0 : now + HOLD)
#endif
		fi;
		forgetsTake(i) }

	/* Confirmation: likewise. */
	:: atomic { in[i].tenure > 0 && in[i].confirm == none && now > in[i].confirmed ->
		before(in[i].confirmSent);
		in[i].shown = etcd.nonce == in[i].tenure && !etcd.released && IN_FORCE(in[i].epoch);
#ifdef MUTANT_ORDER_STALE_READ
		in[i].shown = in[i].shown || stale == in[i].tenure;
#endif
		in[i].confirmFor = in[i].tenure; in[i].confirm = done;
		if
		:: UNSHOWN -> answers(i)
		:: else
		fi }
	:: atomic { in[i].confirm == done ->
		if
		:: in[i].confirmFor != in[i].tenure
		:: in[i].confirmFor == in[i].tenure && in[i].shown ->
#ifdef MUTANT_ORDER_CONFIRMED_AT_ANSWER
			in[i].confirmed = now
#else
			in[i].confirmed = in[i].confirmSent
#endif
		:: in[i].confirmFor == in[i].tenure && !in[i].shown -> ends(i)
		fi;
		answers(i) }

#if ROOMS > 1
	/* The marks of all rooms. */
	:: atomic { in[i].least == 0 && READS_FLOOR(i) && !LOST -> in[i].least = FLOOR(i) }
#endif

	/* A lease, and its answer. */
	:: atomic { in[i].tenure > 0 && in[i].lease == none && in[i].first == in[i].end && BASE(i) + STEP <= IDS &&
		HAS_FLOOR(i) && HELD(i) && IN_FORCE(in[i].epoch) ->
		in[i].leaseFirst = BASE(i); in[i].leaseEnd = in[i].leaseFirst + STEP; etcd.next[ROOM(i)] = in[i].leaseEnd;
#if RESTORES
		in[i].told = largest(in[i].leaseEnd, in[i].told);
#endif
		in[i].leaseFor = in[i].tenure; in[i].lease = done;
		if
		:: LOST -> forgetsLease(i)
		:: else
		fi }
	:: atomic { in[i].lease == done ->
		if
		:: true -> /* it is lost */
#ifdef MUTANT_ORDER_LATE_ANSWER
		:: in[i].tenure > 0 && in[i].first == in[i].end ->
#else
		:: in[i].leaseFor == in[i].tenure ->
#endif
			in[i].first = in[i].leaseFirst; in[i].end = in[i].leaseEnd
		fi;
		forgetsLease(i) }

	/* A call: it comes, takes an ID, passes the gate and is answered. (An answer that came later would bind fewer other
	 * calls.) */
	:: atomic { in[i].call == 0 && calls < CALLS -> calls++; in[i].call = 1; in[i].floor = highest }
	:: atomic { in[i].call == 1 && in[i].tenure > 0 && in[i].first < in[i].end ->
		in[i].call = 2; in[i].id = in[i].first; in[i].by = in[i].tenure; in[i].first++ }
	:: atomic { in[i].call == 2 ->
		if
		:: MAY(i) ->
			assert(in[i].id > in[i].floor);
			assert(!(answered[ROOM(i)] & (1 << in[i].id)));
			answered[ROOM(i)] = answered[ROOM(i)] | (1 << in[i].id);
			highest = largest(in[i].id, highest);
			in[i].call = 0; in[i].floor = 0
		:: else -> in[i].call = 1 /* the ID is a gap */
		fi;
		in[i].id = 0; in[i].by = 0 }

	/* Release: the tenure ends first, and the request arrives at any time, or never. */
#ifdef MUTANT_ORDER_RELEASE_IN_WAIT
	:: atomic { in[i].tenure > 0 && in[i].release == 0 ->
#else
	:: atomic { in[i].tenure > 0 && in[i].release == 0 && now >= in[i].opens ->
#endif
		in[i].release = in[i].tenure;
		if
		:: in[i].first < in[i].end -> in[i].releaseRest = in[i].first; in[i].releaseEnd = in[i].end
		:: else
		fi;
#if !defined(MUTANT_ORDER_RELEASE_BEFORE_STOPPING) && !defined(MUTANT_ORDER_GOES_ON)
		ends(i)
#endif
		}
	:: atomic { in[i].release > 0 ->
		if
		:: etcd.nonce == in[i].release && !etcd.released ->
			etcd.released = 1; etcd.rest = in[i].releaseRest; etcd.end = in[i].releaseEnd;
#ifdef MUTANT_ORDER_GOES_ON
			if
			:: in[i].tenure == in[i].release -> ends(i)
			:: true /* the answer is lost */
			fi
#endif
		:: else
		:: true -> /* it is lost */
		fi;
		in[i].release = 0; in[i].releaseRest = 0; in[i].releaseEnd = 0 }
	od
}

init {
	byte j = 0;
	etcd.epoch = 1; etcd.next[0] = 1; etcd.next[LAST_ROOM] = 1;
#if RESTORES
	epochs = 1;
#endif
	atomic {
		do
		:: j < INSTANCES -> in[j].take = none; in[j].confirm = none; in[j].lease = none; run instance(j); j++
		:: else -> break
		od;
		j = 0
	};
	do
	:: atomic { now < TIME -> now++ }
#if RESTORES
	:: atomic { backup.epoch == 0 && !restored -> copy(etcd, backup) }
	/* etcd goes back to the backup. Requests arrive there, and no answer counts: the look at the beat shows it. */
	:: atomic { backup.epoch > 0 && restores < RESTORES -> restores++; restored = 1; copy(backup, etcd) }
	/* A recover goes through which all instances answer: it knows how far they leased, and they take no answer that is
	 * under way. */
	:: atomic { restored ->
		restored = 0; epochs++; etcd.epoch = epochs;
		k = 0;
		do
		:: k < INSTANCES ->
			etcd.next[ROOM(k)] = largest(in[k].told, etcd.next[ROOM(k)]);
			forgetsTake(k); forgetsLease(k); answers(k);
			k++
		:: else -> break
		od;
		k = 0 }
#endif
	od
}

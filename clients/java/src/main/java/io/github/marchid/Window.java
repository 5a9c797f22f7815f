package io.github.marchid;

import static io.github.marchid.Json.number;

import io.github.marchid.Segment.Part;
import java.math.BigDecimal;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/** The IDs of whole ticks of a worker that is lent for a time, above those of the window before. */
final class Window {
    final Part part; // of the newest layout then: any other may end it
    final long there; // the room's clock, in Unix ms
    final long worker;
    final String nonce; // the proof that the worker is ours
    final long ttl; // ns
    final long due; // when to renew it, by the client's clock
    long until; // when it ends by that
    private final long from; // Unix ms
    private final long to;
    private final int time;
    private final int workerBits;
    private final int sequence;
    private final long unit; // ms
    private final long epoch;
    private final boolean workerLast;
    private final String policy;
    private final long carryTo;
    private final long randomBelow;
    private final List<Object> layout;
    private long tick = -1; // of the last ID,
    private long last; // and its sequence

    Window(Map<String, String> answer, long sent, String nonce, Part part, Window before) {
        worker = number(answer, "time.window.worker");
        from = number(answer, "time.window.fromMs");
        to = number(answer, "time.window.untilMs");
        there = number(answer, "time.window.nowMs");
        this.nonce = nonce;
        this.part = part;
        ttl = (to - Math.max(there, from)) * 1_000_000;
        until = sent + (to - there) * 1_000_000;
        due = until - ttl / 2;
        time = (int) number(answer, "time.tag.timeBits");
        workerBits = (int) number(answer, "time.tag.workerBits");
        sequence = (int) number(answer, "time.tag.sequenceBits");
        unit = nanos(answer.get("time.tag.unit")) / 1_000_000;
        epoch = number(answer, "time.tag.epochMs");
        workerLast = "WORKER_ORDER_LAST".equals(answer.get("time.tag.order"));
        policy = answer.get("time.tag.sequence");
        long carry = number(answer, "time.tag.carryTo");
        long below = number(answer, "time.tag.randomBelow");
        carryTo = carry > 0 ? carry : Math.max((1L << sequence) / 2 - 1, 1);
        randomBelow = Math.min(below > 0 ? below : 100, 1L << sequence);
        if (from >= to || worker < 0 || worker >> workerBits != 0) {
            throw new ArithmeticException("worker " + worker + " from " + from + " until " + to + " ms");
        }
        layout = List.of(time, workerBits, sequence, workerLast, unit, epoch);
        if (before != null && before.layout.equals(layout)) { // or else the tag was made anew
            tick = before.tick;
            last = before.last;
        }
    }

    /** A duration of an answer, such as "600s", in ns; 0 for none. */
    static long nanos(String duration) {
        return duration == null ? 0
            : new BigDecimal(duration.substring(0, duration.length() - 1)).movePointRight(9).longValue();
    }

    /**
     * Up to n IDs of the tick at a time in Unix ms: none if the tick is full; null if the worker's window, the clock
     * or the bits do not allow any, so that a room must issue them.
     */
    Run take(long n, long now) {
        long at = Math.floorDiv(now - epoch, unit);
        long start = epoch + at * unit;
        if (at < Math.max(tick, 0) || at >> time != 0 || start < from || start + unit > to
            || time + workerBits + sequence > 63) { // IDs of more bits exist only as texts
            return null;
        }
        long first = at == tick ? last + 1 : begin();
        long count = Math.max(Math.min(n, (1L << sequence) - first), 0);
        if (count > 0) {
            tick = at;
            last = first + count - 1;
        }
        long place = workerLast ? (first << workerBits) + worker : (worker << sequence) + first;
        return new Run((at << workerBits + sequence) + place, count, workerLast ? 1L << workerBits : 1);
    }

    /** For how many ms the tick at a time goes on. */
    long left(long now) {
        return unit - Math.floorMod(now - epoch, unit);
    }

    private long begin() {
        if ("SEQUENCE_POLICY_RANDOM".equals(policy)) {
            return ThreadLocalRandom.current().nextLong(randomBelow);
        } else if (!"SEQUENCE_POLICY_CARRY".equals(policy)) {
            return 0;
        }
        return Math.min(last >= carryTo ? 1 : last + 1, (1L << sequence) - 1);
    }
}

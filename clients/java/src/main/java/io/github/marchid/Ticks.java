package io.github.marchid;

import static io.github.marchid.Json.number;

import java.math.BigDecimal;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/** The IDs of a time-ordered tag: of whole ticks of a worker's window, and none below the last ID's tick. */
final class Ticks {
    /** A worker from a time until another, in Unix ms. */
    record Window(long worker, long since, long until) {}

    private final int time;
    private final int worker;
    private final int sequence;
    private final long unit; // ms
    private final long epoch;
    private final boolean workerLast;
    private final Object policy;
    private final long carryTo;
    private final long randomBelow;
    private long tick = -1; // of the last ID,
    private long last; // and its sequence

    /** Later settings of a tag go on above its earlier IDs. */
    Ticks(Map<String, Object> tag, Ticks before) {
        time = (int) number(tag, "timeBits");
        worker = (int) number(tag, "workerBits");
        sequence = (int) number(tag, "sequenceBits");
        unit = nanos(tag.get("unit")) / 1_000_000;
        epoch = number(tag, "epochMs");
        workerLast = "WORKER_ORDER_LAST".equals(tag.get("order"));
        policy = tag.get("sequence");
        long carry = number(tag, "carryTo");
        long below = number(tag, "randomBelow");
        carryTo = carry > 0 ? carry : Math.max((1L << sequence) / 2 - 1, 1);
        randomBelow = Math.min(below > 0 ? below : 100, 1L << sequence);
        if (before != null) {
            tick = before.tick;
            last = before.last;
        }
    }

    /** A duration of an answer, such as "600s", in ns; 0 for none. */
    static long nanos(Object duration) {
        return duration instanceof String text
            ? new BigDecimal(text.substring(0, text.length() - 1)).movePointRight(9).longValue() : 0;
    }

    /**
     * Up to n IDs of the tick at a time in Unix ms: none if the tick is full; null if the worker's window, the clock
     * or the bits do not allow any, so that a room must issue them.
     */
    Run take(long n, long now, Window w) {
        long at = Math.floorDiv(now - epoch, unit);
        long start = epoch + at * unit;
        if (at < Math.max(tick, 0) || at >> time != 0 || start < w.since || start + unit > w.until
            || time + worker + sequence > 63) { // IDs of more bits exist only as texts
            return null;
        }
        long from = at == tick ? last + 1 : begin();
        long count = Math.max(Math.min(n, (1L << sequence) - from), 0);
        if (count > 0) {
            tick = at;
            last = from + count - 1;
        }
        long place = workerLast ? (from << worker) + w.worker : (w.worker << sequence) + from;
        return new Run((at << worker + sequence) + place, count, workerLast ? 1L << worker : 1);
    }

    /** How many IDs one worker has in a second. A room issues no more of them at once. */
    long perSecond() {
        long ticks = Math.max(1000 / Math.max(unit, 1), 1);
        return 1L << sequence > MarchClient.MOST / ticks ? MarchClient.MOST : ticks << sequence;
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

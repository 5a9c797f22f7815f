package io.github.marchid;

import static io.github.marchid.Json.number;

import io.github.marchid.Segment.Part;
import io.github.marchid.Tag.Run;
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
    private final int time; // bits,
    private final int rest; // and those below
    private final long full; // IDs of a tick
    private final long step; // between them
    private final long place; // of the first, in its tick
    private final long unit; // ms
    private final long epoch;
    private final String policy;
    private final long carryTo;
    private final long randomBelow;
    private final List<Object> layout;
    private long tick = -1; // of the last ID,
    private long last; // and its sequence

    Window(Map<String, String> answer, long sent, String nonce, Part part, Window before) {
        this.nonce = nonce;
        this.part = part;
        worker = number(answer, "time.window.worker");
        from = number(answer, "time.window.fromMs");
        to = number(answer, "time.window.untilMs");
        there = number(answer, "time.window.nowMs");
        ttl = (to - Math.max(there, from)) * 1_000_000;
        until = sent + (to - there) * 1_000_000;
        due = until - ttl / 2;
        time = (int) number(answer, "time.tag.timeBits");
        long workers = 1L << number(answer, "time.tag.workerBits");
        full = 1L << number(answer, "time.tag.sequenceBits");
        rest = (int) (number(answer, "time.tag.workerBits") + number(answer, "time.tag.sequenceBits"));
        boolean workerLast = "WORKER_ORDER_LAST".equals(answer.get("time.tag.order"));
        step = workerLast ? workers : 1;
        place = workerLast ? worker : worker * full;
        unit = nanos(answer.get("time.tag.unit")) / 1_000_000;
        epoch = number(answer, "time.tag.epochMs");
        policy = answer.getOrDefault("time.tag.sequence", "");
        long carry = number(answer, "time.tag.carryTo");
        carryTo = carry > 0 ? carry : Math.max(full / 2 - 1, 1);
        long below = number(answer, "time.tag.randomBelow");
        randomBelow = Math.min(below > 0 ? below : 100, full);
        if (unit < 1 || from >= to || worker < 0 || worker >= workers) {
            throw new ArithmeticException("worker " + worker + " from " + from + " until " + to + " ms");
        }
        layout = List.of(time, rest, full, step, unit, epoch);
        if (before != null && before.layout.equals(layout)) { // or else the tag was made anew
            tick = before.tick;
            last = before.last;
        }
    }

    /** A duration of an answer, such as "600s", in ns; 0 for none. */
    static long nanos(String duration) {
        return duration == null ? 0
            : new BigDecimal(duration.substring(0, duration.length() - 1)).movePointRight(9).longValueExact();
    }

    /**
     * Up to n IDs of the tick at a time in Unix ms: none if the tick is full; null if the worker's window, the clock
     * or the bits do not allow any, so that a room must issue them.
     */
    Run take(long n, long now) {
        long at = Math.floorDiv(now - epoch, unit);
        long start = epoch + at * unit;
        if (at < Math.max(tick, 0) || at >> time != 0 || start < from || start + unit > to || time + rest > 63) {
            return null; // IDs of more bits exist only as texts
        }
        long first = at == tick ? last + 1 : switch (policy) {
            case "SEQUENCE_POLICY_RANDOM" -> ThreadLocalRandom.current().nextLong(randomBelow);
            case "SEQUENCE_POLICY_CARRY" -> Math.min(last >= carryTo ? 1 : last + 1, full - 1);
            default -> 0;
        };
        long count = Math.max(Math.min(n, full - first), 0);
        if (count > 0) {
            tick = at;
            last = first + count - 1;
        }
        return new Run((at << rest) + place + first * step, count, step);
    }
}

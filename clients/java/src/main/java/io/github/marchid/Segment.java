package io.github.marchid;

import static io.github.marchid.Json.number;

import io.github.marchid.Tag.Run;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** A counter with its cache lines to itself, so that taking an ID on one core does not evict what others read. */
@SuppressWarnings({"serial", "unused"})
class Counter extends AtomicLong {
    long p00, p01, p02, p03, p04, p05, p06, p07, p08, p09, p10, p11, p12, p13, p14, p15;
}

/**
 * IDs of a part by their ordinals, which count the part's IDs from 0 at the start of the first one's block. The counter
 * is the next ordinal, end the one after the last. From until on, by the client's clock, none may be issued; from due
 * on, when a third of the time is left, the segment is to be replaced.
 */
@SuppressWarnings("serial")
final class Segment extends Counter {
    /** A room's part of a layout: the IDs with lower <= id mod boundary < upper. */
    record Part(long version, long boundary, long lower, long upper) {
        /** The part of an answer that begins with a path. */
        static Part of(Map<String, String> in, String path) {
            return new Part(number(in, path + ".version"), number(in, path + ".boundary"),
                number(in, path + ".range.lower"), number(in, path + ".range.upper"));
        }

        /** Whether a room with this part must replace what it leased of an older one. */
        boolean outdates(Part old) {
            boolean kept = boundary == old.boundary && lower <= old.lower && old.upper <= upper;
            return old.version < version && !kept;
        }
    }

    private static final long WIDE = 1L << 31; // more than a segment has

    final Part part;
    final long ttl; // ns; 0 for no end
    final long until;
    final long due;
    final long start; // the first ordinal
    private final long width;
    private final long gap; // between blocks
    private final long base; // the ID of ordinal 0
    private final long magic; // 2^63 / width, rounded up: exact while an ordinal times the width is below 2^63
    private volatile long end;
    volatile long unchecked; // take checks no end at an ordinal that has a bit of this: at 0 it checks each

    /** The segment of an answer to a request for so many IDs. An ArithmeticException says that it makes no sense. */
    Segment(Map<String, String> answer, long asked, long sent, long ttl) {
        part = Part.of(answer, "segment");
        this.ttl = ttl;
        until = ttl > 0 ? sent + ttl : Long.MAX_VALUE;
        due = until - ttl / 3;
        long first = number(answer, "segment.first");
        long count = number(answer, "segment.count");
        long residue = first % part.boundary;
        width = part.upper - part.lower;
        gap = part.boundary - width;
        base = first - residue + part.lower;
        magic = width > 1 && width < WIDE ? Long.MAX_VALUE / width + 1 : 0;
        start = residue - part.lower;
        set(start);
        end = start + count;
        if (ttl < 0 || part.version < 1 || part.lower < 0 || part.upper > part.boundary || residue < part.lower
            || residue >= part.upper || count < 1 || count > asked || Math.addExact(base,
                Math.addExact(end - 1, Math.multiplyExact((end - 1) / width, gap))) < first) {
            throw new ArithmeticException(part + ", " + count + " IDs from " + first + ", asked for " + asked);
        }
    }

    /** The next ID, or -1 if none is left, or the segment's time has ended. */
    long take() {
        long n = getAndIncrement();
        return n < end && ((n & unchecked) != 0 || Rooms.now() < until) ? id(n) : -1;
    }

    /** Adds the next n IDs to runs, or as many as are left, and returns how many. It takes none if too few are left. */
    long take(long n, long least, List<Run> runs) {
        long from = get();
        long some = Math.min(n, Math.max(end - from, 0));
        if (some < least || !compareAndSet(from, from + some)) { // next takes, too
            return -1;
        }
        long to = from + some;
        for (long at = from; at < to; ) {
            long next = gap == 0 ? to : Math.min(to, (block(at) + 1) * width);
            runs.add(new Run(id(at), next - at, 1));
            at = next;
        }
        return some;
    }

    long id(long n) {
        return base + n + block(n) * gap;
    }

    private long block(long n) {
        return magic != 0 ? Math.multiplyHigh(n << 1, magic) : width == 1 ? n : n < width ? 0 : 1;
    }

    /** How many IDs are left. */
    long count() {
        return Math.max(end - get(), 0);
    }

    /** Drops the IDs from a limit on. */
    void cut(long limit) {
        long above = limit - (base - part.lower);
        long residue = Math.floorMod(above, part.boundary) - part.lower;
        end = Math.min(end, Math.floorDiv(above, part.boundary) * width + Math.min(Math.max(residue, 0), width));
    }
}

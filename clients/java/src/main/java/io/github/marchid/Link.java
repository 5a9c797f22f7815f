package io.github.marchid;

import java.util.concurrent.atomic.AtomicLong;

/** A counter with its cache lines to itself, so that taking an ID on one core does not evict what others read. */
@SuppressWarnings({"serial", "unused"})
class Counter extends AtomicLong {
    long p00, p01, p02, p03, p04, p05, p06, p07, p08, p09, p10, p11, p12, p13, p14, p15;

    Counter(long first) {
        super(first);
    }
}

/**
 * The part of a segment that is being handed out. An ordinal n is the index of an ID, counted from the start of the
 * first block; its ID is base + n * step + n / width * gap. The division is a multiplication by magic = 2^63 / width,
 * rounded up: n * magic / 2^63 is exact as long as n * width is at most 2^63.
 */
@SuppressWarnings("serial")
final class Link extends Counter {
    private static final long MOST = 1L << 31; // ordinals of a link of several blocks, and their width
    private static final long CLOSED = 1L << 62; // beyond every end

    final Segment segment;
    private final long start;
    private final long end;
    private final long base;
    private final long step;
    private final long gap;
    private final long magic;

    /** A link of at most n IDs from the front of a segment. */
    static Link of(Segment s, long n) {
        long width = s.part().width();
        long consecutive = s.consecutive();
        if (n <= consecutive || width >= MOST) { // one run
            return new Link(s.head(Math.min(n, consecutive)), 0, s.first(), 1, 0, 0);
        }
        long offset = s.first() % s.part().boundary() - s.part().lower();
        Segment head = s.head(Math.min(n, MOST - offset));
        if (width == 1) {
            return new Link(head, 0, s.first(), s.part().boundary(), 0, 0);
        }
        return new Link(head, offset, s.first() - offset, 1, s.part().boundary() - width, Long.MAX_VALUE / width + 1);
    }

    private Link(Segment segment, long start, long base, long step, long gap, long magic) {
        super(start);
        this.segment = segment;
        this.start = start;
        this.end = start + segment.count();
        this.base = base;
        this.step = step;
        this.gap = gap;
        this.magic = magic;
    }

    /**
     * The next ID, or -1 if none is left. The end of the segment's time is checked at each ID whose ordinal has no bit
     * of unchecked: at 0 that is each one.
     */
    long take(long unchecked) {
        long n = getAndIncrement();
        return n < end && ((n & unchecked) != 0 || Rooms.now() < segment.until())
            ? base + n * step + Math.multiplyHigh(n << 1, magic) * gap : -1;
    }

    long taken() {
        return Math.min(get(), end) - start;
    }

    long remaining() {
        return segment.count() - taken();
    }

    /** Ends the link, and returns the IDs that nobody took. */
    Segment close() {
        return segment.rest(Math.min(getAndAdd(CLOSED), end) - start);
    }
}

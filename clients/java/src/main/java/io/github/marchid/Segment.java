package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.Json.object;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** count IDs of a part: first, and the smallest ones above it. From until on, by the client's clock, none is issued. */
record Segment(Part part, long first, long count, long until) {
    /** A room's part of a layout: the IDs with lower <= id mod boundary < upper. */
    record Part(long version, long boundary, long lower, long upper) {
        static final Part NONE = new Part(0, 0, 0, 0);

        static Part of(Map<String, Object> message) {
            Map<String, Object> range = object(message, "range");
            return new Part(number(message, "version"), number(message, "boundary"), number(range, "lower"),
                number(range, "upper"));
        }

        long width() {
            return upper - lower;
        }

        /** Whether a room with this part must replace a segment. */
        boolean outdates(Segment s) {
            boolean kept = boundary == s.part.boundary && lower <= s.part.lower && s.part.upper <= upper;
            return s.part.version < version && !kept;
        }
    }

    /** The segment of an answer to a request for so many IDs. An ArithmeticException says that it makes no sense. */
    static Segment of(Map<String, Object> message, long asked, long until) {
        Segment s = new Segment(Part.of(message), number(message, "first"), number(message, "count"), until);
        Part p = s.part;
        long residue = s.first % p.boundary;
        if (p.version < 1 || p.lower < 0 || p.upper > p.boundary || residue < p.lower || residue >= p.upper
            || s.count < 1 || s.count > asked || s.at(s.count - 1) < s.first) {
            throw new ArithmeticException(s + ", asked for " + asked + " IDs");
        }
        return s;
    }

    /** Whether a third of its time is left, or less. */
    boolean aging(long now, long ttl) {
        return until - ttl / 3 <= now;
    }

    private long offset() {
        return first % part.boundary - part.lower;
    }

    /** The k-th ID, from 0. */
    long at(long k) {
        long q = Math.addExact(offset(), k);
        return Math.addExact(first - offset(), Math.multiplyExact(q / part.width(), part.boundary)) + q % part.width();
    }

    /** The first n IDs. */
    Segment head(long n) {
        return new Segment(part, first, Math.min(n, count), until);
    }

    /** The IDs after the first n. */
    Segment rest(long n) {
        return n >= count ? new Segment(part, first, 0, until) : new Segment(part, at(n), count - n, until);
    }

    /** The IDs below a limit. */
    Segment below(long limit) {
        long blocks = limit / part.boundary - first / part.boundary;
        long residues = Math.min(Math.max(limit % part.boundary, part.lower), part.upper) - first % part.boundary;
        return head(Math.max(blocks * part.width() + residues, 0));
    }

    /** How many of the first IDs are consecutive. */
    long consecutive() {
        return part.width() == part.boundary ? count : Math.min(count, part.width() - offset());
    }

    List<Run> runs() {
        List<Run> runs = new ArrayList<>();
        for (Segment s = this; s.count > 0; s = s.rest(s.consecutive())) {
            runs.add(new Run(s.first, s.consecutive(), 1));
        }
        return runs;
    }
}

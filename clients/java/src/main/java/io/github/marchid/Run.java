package io.github.marchid;

import java.util.stream.LongStream;

/**
 * {@code count} IDs: first, first + step, and so on. The step is 1, but of a time-ordered tag whose worker is last.
 */
public record Run(long first, long count, long step) {
    /** Returns the IDs. */
    public LongStream ids() {
        return LongStream.range(0, count).map(k -> first + k * step);
    }
}

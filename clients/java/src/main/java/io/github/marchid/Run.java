package io.github.marchid;

import static io.github.marchid.Json.number;

import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * {@code count} IDs: first, first + step, and so on. The step is 1, but of a time-ordered tag whose worker is last.
 */
public record Run(long first, long count, long step) {
    /** Returns the IDs. */
    public LongStream ids() {
        return LongStream.range(0, count).map(k -> first + k * step);
    }

    /** The runs of an answer. */
    static List<Run> of(Map<String, String> answer) {
        return Stream.iterate(0, k -> k + 1).map(k -> "runs." + k).takeWhile(run -> answer.containsKey(run + ".first"))
            .map(run -> new Run(number(answer, run + ".first"), number(answer, run + ".count"),
                Math.max(number(answer, run + ".stride"), 1))).toList();
    }
}

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

    /** How many IDs runs have. */
    static long count(List<Run> runs) {
        return runs.stream().mapToLong(Run::count).sum();
    }

    /** The runs of an answer. An ArithmeticException says that they have not as many IDs as were asked for. */
    static List<Run> of(Map<String, String> answer, long asked) {
        List<Run> runs = Stream.iterate(0, k -> k + 1).map(k -> "runs." + k)
            .takeWhile(run -> answer.containsKey(run + ".first")).map(run -> new Run(number(answer, run + ".first"),
                number(answer, run + ".count"), Math.max(number(answer, run + ".stride"), 1))).toList();
        if (runs.stream().anyMatch(run -> run.count < 1) || count(runs) != asked) {
            throw new ArithmeticException(runs + ", asked for " + asked);
        }
        return runs;
    }
}

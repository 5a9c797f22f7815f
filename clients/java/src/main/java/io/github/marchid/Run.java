package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.Json.object;

import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;

/**
 * {@code count} IDs: first, first + step, and so on. The step is 1, but of a time-ordered tag whose worker is last.
 */
public record Run(long first, long count, long step) {
    /** Returns the IDs. */
    public LongStream ids() {
        return LongStream.range(0, count).map(k -> first + k * step);
    }

    /** The runs of an answer. */
    static List<Run> of(Map<String, Object> answer) {
        List<?> runs = answer.get("runs") instanceof List<?> list ? list : List.of();
        return runs.stream().map(run -> object(Map.of("run", run), "run"))
            .map(run -> new Run(number(run, "first"), number(run, "count"), Math.max(number(run, "stride"), 1))).toList();
    }
}

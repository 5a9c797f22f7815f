package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.Json.object;

import io.github.marchid.Segment.Part;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;

/** The vectors of testdata/clients, which the Go code computes for all clients. Its argument is that folder. */
public final class VectorsTest {
    private static int checked;
    private static Path folder;

    /** Runs all, and fails at the first that differs. */
    public static void main(String[] args) throws Exception {
        folder = Path.of(args[0]);
        for (Map<String, Object> v : vectors("segments")) {
            segment(v);
        }
        for (Map<String, Object> v : vectors("layouts")) {
            Segment s = Segment.of(object(v, "segment"), 1000, Long.MAX_VALUE);
            same(v, v.get("outdated"), String.valueOf(Part.of(object(v, "serves")).outdates(s)));
        }
        for (Map<String, Object> v : vectors("windows")) {
            window(v);
        }
        for (Map<String, Object> v : vectors("runs")) {
            Map<String, Object> run = object(v, "run");
            Run got = new Run(number(run, "first"), number(run, "count"), Math.max(number(run, "stride"), 1));
            same(v, v.get("ids"), got.ids().mapToObj(String::valueOf).toList());
        }
        for (Map<String, Object> v : vectors("ttl")) {
            long ttl = Ticks.nanos(v.get("ttl"));
            long at = number(v, "afterMs") * 1_000_000;
            Segment s = new Segment(new Part(1, 1, 0, 1), 1, 1, ttl > 0 ? ttl : Long.MAX_VALUE);
            same(v, List.of(v.get("ended"), v.get("replace")),
                List.of(String.valueOf(s.until() <= at), String.valueOf(s.aging(at, ttl))));
        }
        for (Map<String, Object> v : vectors("errors")) {
            MarchException e = Rooms.error((int) number(v, "status"), (String) v.get("body"),
                (String) v.get("retryAfter"), "room");
            same(v, List.of(v.get("kind"), v.get("elsewhere"), v.get("againSeconds"), v.get("limit")),
                List.of(e.kind().name().toLowerCase(Locale.ROOT), String.valueOf(e.elsewhere()),
                    String.valueOf(e.retryAfter().toSeconds()), String.valueOf(e.limit())));
        }
        for (Map<String, Object> v : vectors("together")) {
            List<MarchException> failures = ((List<?>) v.get("failures")).stream()
                .map(kind -> new MarchException(MarchException.Kind.of((String) kind, 0), "a room")).toList();
            same(v, v.get("kind"), Rooms.together(failures).kind().name().toLowerCase(Locale.ROOT));
        }
        System.out.println("ok, " + checked + " checks");
        RoomTest.main(args);
    }

    private static void segment(Map<String, Object> v) {
        Segment s = Segment.of(object(v, "segment"), 1_000_000_000, Long.MAX_VALUE);
        List<?> at = (List<?>) v.get("at");
        for (int k = 0; k < at.size(); k += 2) {
            same(v, at.get(k + 1), String.valueOf(s.at(Long.parseLong((String) at.get(k)))));
        }
        Segment rest = s;
        for (Object run : (List<?>) v.get("runs")) {
            same(v, run, List.of(String.valueOf(rest.first()), String.valueOf(rest.consecutive())));
            rest = rest.rest(rest.consecutive());
        }
        for (Object below : (List<?>) v.get("below")) {
            List<?> pair = (List<?>) below;
            same(v, pair.get(1), String.valueOf(s.below(Long.parseLong((String) pair.get(0))).count()));
        }
        rest = s; // all IDs by links, of which the last is closed early
        for (long k = 0; k < Math.min(s.count(), 3000);) {
            Link link = Link.of(rest, 700);
            for (long n = Math.min(link.segment.count(), 600); n > 0; n--, k++) {
                same(v, s.at(k), link.take(0));
            }
            Segment left = link.close();
            same(v, -1L, link.take(0));
            same(v, link.segment.count() - left.count(), Math.min(link.segment.count(), 600L));
            rest = rest.rest(link.segment.count() - left.count());
        }
    }

    private static void window(Map<String, Object> v) {
        Ticks ticks = new Ticks(object(v, "tag"), null);
        Map<String, Object> w = object(v, "window");
        Ticks.Window window = new Ticks.Window(number(w, "worker"), number(w, "fromMs"), number(w, "untilMs"));
        for (Object one : (List<?>) v.get("takes")) {
            Map<String, Object> take = object(Map.of("take", one), "take");
            Run run = ticks.take(number(take, "n"), number(take, "nowMs"), window);
            same(take, take.get("run"), run == null ? null : run.count() == 0 ? List.of()
                : List.of(String.valueOf(run.first()), String.valueOf(run.count()), String.valueOf(run.step())));
        }
    }

    @SuppressWarnings("unchecked")
    private static List<Map<String, Object>> vectors(String name) throws IOException {
        return (List<Map<String, Object>>) Json.parse(Files.readString(folder.resolve(name + ".json")));
    }

    private static void same(Object vector, Object want, Object got) {
        checked++;
        if (!Objects.equals(want, got)) {
            throw new AssertionError("got " + got + ", want " + want + ": " + vector);
        }
    }
}

package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.Json.object;
import static io.github.marchid.MarchClient.MOST;

import io.github.marchid.Segment.Part;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
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
            Part old = Part.of(object(v, "segment"));
            same(v, v.get("outdated"), String.valueOf(Part.of(object(v, "serves")).outdates(old)));
        }
        for (Map<String, Object> v : vectors("windows")) {
            window(v);
        }
        for (Map<String, Object> v : vectors("runs")) {
            Run got = Run.of(Map.of("runs", List.of(v.get("run")))).get(0);
            same(v, v.get("ids"), got.ids().mapToObj(String::valueOf).toList());
        }
        for (Map<String, Object> v : vectors("ttl")) {
            long at = number(v, "afterMs") * 1_000_000;
            Segment s = new Segment(object(vectors("segments").get(0), "segment"), MOST, 0, Window.nanos(v.get("ttl")));
            same(v, List.of(v.get("ended"), v.get("replace")),
                List.of(String.valueOf(s.until <= at), String.valueOf(s.due <= at)));
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
        Segment s = new Segment(object(v, "segment"), MOST, 0, 0);
        long first = s.get();
        List<?> at = (List<?>) v.get("at");
        for (int k = 0; k < at.size(); k += 2) {
            same(v, at.get(k + 1), String.valueOf(s.id(first + Long.parseLong((String) at.get(k)))));
        }
        List<Run> runs = new ArrayList<>();
        s.add(first, first + Math.min(s.count(), 100_000), runs);
        int n = 0;
        for (Object run : (List<?>) v.get("runs")) {
            List<?> pair = (List<?>) run;
            same(v, pair.get(0), String.valueOf(runs.get(n).first()));
            same(v, Math.min(Long.parseLong((String) pair.get(1)), 100_000), runs.get(n++).count());
        }
        for (Object below : (List<?>) v.get("below")) {
            List<?> pair = (List<?>) below;
            Segment cut = new Segment(object(v, "segment"), MOST, 0, 0);
            cut.cut(Long.parseLong((String) pair.get(0)));
            same(v, pair.get(1), String.valueOf(cut.count()));
        }
        for (Run run : runs.subList(0, Math.min(runs.size(), 3000))) { // next takes the same IDs
            run.ids().limit(3000).filter(id -> id < run.first() + 3000).forEach(id -> same(v, id, s.take(0)));
            if (run.count() > 3000) {
                break;
            }
        }
        s.cut(0);
        same(v, -1L, s.take(0));
    }

    private static void window(Map<String, Object> v) {
        Window window = new Window(v, 0, "", new Part(1, 0, 0, 0), null);
        for (Object one : (List<?>) v.get("takes")) {
            Map<String, Object> take = object(Map.of("take", one), "take");
            Run run = window.take(number(take, "n"), number(take, "nowMs"));
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

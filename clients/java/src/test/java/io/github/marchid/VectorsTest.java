package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.MarchClient.MOST;

import io.github.marchid.Segment.Part;
import io.github.marchid.Tag.Run;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/** The vectors of testdata/clients, which the Go code computes for all clients. Its argument is that folder. */
public final class VectorsTest {
    private static int checked;
    private static Path folder;

    /** Runs all, and fails at the first that differs. */
    public static void main(String[] args) throws Exception {
        folder = Path.of(args[0]);
        for (Map<String, String> v : vectors("segments")) {
            segment(v);
        }
        for (Map<String, String> v : vectors("layouts")) {
            Part old = Part.of(v, "segment");
            same(v, v.get("outdated"), String.valueOf(Part.of(v, "serves").outdates(old)));
        }
        for (Map<String, String> v : vectors("windows")) {
            window(v);
        }
        for (Map<String, String> v : vectors("runs")) {
            Map<String, String> answer = new HashMap<>();
            v.forEach((path, value) -> answer.put(path.replace("run.", "runs.0."), value));
            Run run = Run.of(answer, number(v, "run.count")).get(0);
            same(v, list(v, "ids"), run.ids().mapToObj(String::valueOf).toList());
        }
        for (Map<String, String> v : vectors("ttl")) {
            long at = number(v, "afterMs") * 1_000_000;
            Segment s = new Segment(vectors("segments").get(0), MOST, 0, Window.nanos(v.get("ttl")));
            same(v, List.of(v.get("ended"), v.get("replace")),
                List.of(String.valueOf(s.until <= at), String.valueOf(s.due <= at)));
        }
        for (Map<String, String> v : vectors("errors")) {
            MarchException e = Rooms.error((int) number(v, "status"), v.get("body"),
                v.get("retryAfter"), "room");
            same(v, List.of(v.get("kind"), v.get("elsewhere"), v.get("againSeconds"), v.get("limit")),
                List.of(e.kind().name().toLowerCase(Locale.ROOT), String.valueOf(e.elsewhere()),
                    String.valueOf(e.retryAfter().toSeconds()), String.valueOf(e.limit())));
        }
        for (Map<String, String> v : vectors("together")) {
            List<MarchException> failures = list(v, "failures").stream()
                .map(kind -> new MarchException(MarchException.Kind.of(kind, 0), "a room", null)).toList();
            same(v, v.get("kind"), Rooms.together(failures).kind().name().toLowerCase(Locale.ROOT));
        }
        System.out.println("ok, " + checked + " checks");
        RoomTest.main(args);
    }

    private static void segment(Map<String, String> v) {
        Segment s = new Segment(v, MOST, 0, 0);
        long first = s.get();
        List<String> at = list(v, "at");
        for (int k = 0; k < at.size(); k += 2) {
            same(v, at.get(k + 1), String.valueOf(s.id(first + Long.parseLong(at.get(k)))));
        }
        List<Run> runs = new ArrayList<>();
        new Segment(v, MOST, 0, 0).take(100_000, 0, runs);
        int n = 0;
        for (List<String> pair = list(v, "runs.0"); !pair.isEmpty(); pair = list(v, "runs." + ++n)) {
            same(v, pair.get(0), String.valueOf(runs.get(n).first()));
            same(v, Math.min(Long.parseLong(pair.get(1)), 100_000), runs.get(n).count());
        }
        n = 0;
        for (List<String> pair = list(v, "below.0"); !pair.isEmpty(); pair = list(v, "below." + ++n)) {
            Segment cut = new Segment(v, MOST, 0, 0);
            cut.cut(Long.parseLong(pair.get(0)));
            same(v, pair.get(1), String.valueOf(cut.count()));
        }
        for (Run run : runs.subList(0, Math.min(runs.size(), 3000))) { // next takes the same IDs
            run.ids().limit(3000).filter(id -> id < run.first() + 3000).forEach(id -> same(v, id, s.take()));
            if (run.count() > 3000) {
                break;
            }
        }
        s.cut(0);
        same(v, -1L, s.take());
    }

    private static void window(Map<String, String> v) {
        Map<String, String> answer = new HashMap<>();
        v.forEach((path, value) -> answer.put("time." + path, value));
        Window window = new Window(answer, 0, "", new Part(1, 0, 0, 0), null);
        for (int k = 0; v.containsKey("takes." + k + ".n"); k++) {
            String take = "takes." + k;
            Run run = window.take(number(v, take + ".n"), number(v, take + ".nowMs"));
            same(take + v, v.get(take + ".run") == null ? list(v, take + ".run") : "", run == null ? List.of()
                : run.count() == 0 ? ""
                : List.of(String.valueOf(run.first()), String.valueOf(run.count()), String.valueOf(run.step())));
        }
    }

    /** The vectors of a file, of which each has a line. */
    private static List<Map<String, String>> vectors(String name) throws IOException {
        return Files.readAllLines(folder.resolve(name + ".json")).stream().filter(line -> line.startsWith("{"))
            .map(line -> Json.parse(line.replaceAll(",$", ""))).toList();
    }

    private static List<String> list(Map<String, String> v, String path) {
        return Stream.iterate(0, k -> k + 1).map(k -> v.get(path + "." + k)).takeWhile(Objects::nonNull).toList();
    }

    private static void same(Object vector, Object want, Object got) {
        checked++;
        if (!Objects.equals(want, got)) {
            throw new AssertionError("got " + got + ", want " + want + ": " + vector);
        }
    }
}

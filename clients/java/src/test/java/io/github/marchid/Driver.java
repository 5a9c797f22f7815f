package io.github.marchid;

import io.github.marchid.Tag.Run;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.function.Supplier;
import java.util.stream.Stream;

/** Takes IDs until its input ends, and writes each run of them; see clients/conformance. */
public final class Driver {
    private static volatile boolean stopped;

    public static void main(String[] args) throws IOException, InterruptedException {
        Map<String, String> options = Json.parse(args[0]);
        List<String> tags = strings(options, "tags");
        long step = Json.number(options, "minStep");
        long pause = Json.number(options, "pause");
        MarchClient.Options given = new MarchClient.Options();
        given.addresses = strings(options, "addresses");
        given.fallback = strings(options, "fallback");
        given.tokenFile = Path.of(options.get("tokenFile"));
        given.ca = Path.of(options.get("ca"));
        given.minStep = step;
        given.maxStep = step;
        MarchClient ids = new MarchClient(given);
        Tag.Text text = null;
        while (text == null) { // a busy machine may take longer than the limit of a call to start all
            try {
                tags.forEach(name -> ids.tag(name).warm());
                text = ids.tag(options.get("text")).nextText();
            } catch (MarchException e) {
                if (!kind(e).equals("unavailable")) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
        long parsed = ids.tag(options.get("text")).parseText(text.text());
        say("text " + text.text() + " " + text.id() + " " + parsed);
        try {
            ids.next("no-such-tag");
        } catch (MarchException e) {
            say("unknown " + kind(e));
        }
        List<Thread> threads = new ArrayList<>();
        for (String name : tags) {
            threads.add(new Thread(() -> load(pause, name, () -> ids.tag(name).nextN(5))));
            threads.add(new Thread(() -> load(pause, name, () -> List.of(new Run(ids.next(name), 1, 1)))));
        }
        threads.forEach(Thread::start);
        Tag first = ids.tag(tags.get(0));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (lines.readLine() != null) { // each line has it hold half of a lease, and so ask a room for more
            long n = first.held() - step / 2;
            if (n > 0) {
                take(first.name(), () -> first.nextN(n));
            }
        }
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
        ids.close();
        try {
            ids.next(tags.get(0));
        } catch (MarchException e) {
            say("closed " + kind(e));
        }
    }

    private static void load(long pause, String name, Supplier<List<Run>> call) {
        while (!stopped) {
            try {
                Thread.sleep(pause);
            } catch (InterruptedException e) {
                return;
            }
            take(name, call);
        }
    }

    private static void take(String name, Supplier<List<Run>> call) {
        try {
            long began = System.currentTimeMillis();
            for (Run run : call.get()) {
                say("id " + name + " " + run.first() + " " + run.count() + " " + run.step() + " " + began);
            }
        } catch (MarchException e) {
            say("error " + name + " " + kind(e) + " " + e.getMessage());
        }
    }

    private static String kind(MarchException e) {
        return e.kind().name().toLowerCase(Locale.ROOT);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private static List<String> strings(Map<String, String> options, String name) {
        return Stream.iterate(0, k -> k + 1).map(k -> options.get(name + "." + k)).takeWhile(Objects::nonNull).toList();
    }
}

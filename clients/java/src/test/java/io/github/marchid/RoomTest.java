package io.github.marchid;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.github.marchid.MarchException.Kind;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;

/** The client against a room that does what a test wants. */
public final class RoomTest {
    private static final String PART =
        "\"version\":\"1\",\"boundary\":\"1\",\"range\":{\"lower\":\"0\",\"upper\":\"1\"}";

    /** Answers a request with a body, or does not. */
    private interface Answers {
        void to(HttpExchange x, String body) throws Exception;
    }

    private static final class Room implements AutoCloseable {
        final HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        final String url = "http://127.0.0.1:" + server.getAddress().getPort();
        final ExecutorService threads = Executors.newCachedThreadPool();
        final CountDownLatch end = new CountDownLatch(1);
        final AtomicInteger asked = new AtomicInteger();
        volatile String ttl = "60s";
        volatile String serves = PART;
        volatile String body = "";
        volatile Answers answers = this::lease;
        private long first;

        Room() throws IOException {
            server.setExecutor(threads);
            server.createContext("/", x -> {
                try (x) {
                    body = new String(x.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
                    asked.incrementAndGet();
                    answers.to(x, body);
                } catch (Exception e) {
                    throw new IOException(e);
                }
            });
            server.start();
        }

        MarchClient client() { // patient: the first request of a process may take seconds on a busy machine
            return new MarchClient(patient());
        }

        MarchClient.Options options() {
            return new MarchClient.Options(url);
        }

        MarchClient.Options patient() {
            MarchClient.Options options = options();
            options.timeout = Duration.ofSeconds(20);
            return options;
        }

        long count(String body) {
            return Long.parseLong(body.replaceAll(".*\"count\":\"(\\d+)\".*", "$1"));
        }

        synchronized void lease(HttpExchange x, String body) throws IOException {
            long n = count(body);
            say(x, 200, "{\"segment\":{" + PART + ",\"first\":\"" + first + "\",\"count\":\"" + n + "\"},\"ttl\":\""
                + ttl + "\",\"limit\":\"0\",\"serves\":{" + serves + "},\"time\":null}");
            first += n;
        }

        void refuse(HttpExchange x, int status, String reason) throws IOException {
            say(x, status, "{\"reason\":\"" + reason + "\",\"message\":\"no\"}");
        }

        void hang(HttpExchange x, String body) throws InterruptedException {
            end.await();
        }

        static void say(HttpExchange x, int status, String text) throws IOException {
            x.sendResponseHeaders(status, text.length());
            x.getResponseBody().write(text.getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public void close() {
            end.countDown();
            server.stop(0);
            threads.shutdownNow();
        }
    }

    private interface Test {
        void run(Room room) throws Exception;
    }

    /** Runs all, or those whose names are arguments after the first, and fails at the first that fails. */
    public static void main(String[] args) throws Exception {
        List<String> only = List.of(args).subList(Math.min(args.length, 1), args.length);
        run(only, "handle", RoomTest::handle);
        run(only, "names", RoomTest::names);
        run(only, "ends", RoomTest::ends);
        run(only, "endAtTake", RoomTest::endAtTake);
        run(only, "windowEnds", RoomTest::windowEnds);
        run(only, "hangs", RoomTest::hangs);
        run(only, "slow", RoomTest::slow);
        run(only, "worker", RoomTest::worker);
        run(only, "idle", RoomTest::idle);
        run(only, "anew", RoomTest::anew);
        run(only, "nextN", RoomTest::nextN);
        run(only, "threads", RoomTest::threads);
        run(only, "locale", RoomTest::locale);
        run(only, "ahead", RoomTest::ahead);
        run(only, "texts", RoomTest::texts);
        run(only, "token", RoomTest::token);
        run(only, "retryAfter", RoomTest::retryAfter);
        run(only, "noWindow", RoomTest::noWindow);
        run(only, "foreign", RoomTest::foreign);
        run(only, "several", RoomTest::several);
        run(only, "hosts", RoomTest::hosts);
        run(only, "interrupted", RoomTest::interrupted);
        run(only, "lags", RoomTest::lags);
        run(only, "many", RoomTest::many);
        run(only, "few", RoomTest::few);
        run(only, "stale", RoomTest::stale);
        System.out.println("ok, with a room of the test's");
    }

    private static void run(List<String> only, String name, Test test) throws Exception {
        if (!only.isEmpty() && !only.contains(name)) {
            return;
        }
        try (Room room = new Room()) {
            test.run(room);
        } catch (Exception | AssertionError e) {
            throw new AssertionError(name + ": " + e, e);
        }
    }

    /** A handle goes on though its name was forgotten; the end of its leases and close are its own, too. */
    private static void handle(Room room) throws Exception {
        room.answers = (x, body) -> room.refuse(x, 404, "not_found");
        room.ttl = "1s";
        MarchClient ids = room.client();
        Tag tag = ids.tag("late");
        is(Kind.NOT_FOUND, kind(tag::next));
        is(Kind.NOT_FOUND, kind(() -> ids.next("short")));
        is(true, tag == ids.tag("late"));
        synchronized (tag) {
            tag.used -= 61_000_000_000L;
        }
        await("the name is forgotten", () -> !ids.tags.containsKey("late"));
        is(true, ids.tags.containsKey("short"));
        room.answers = room::lease;
        await("the tag is found", () -> kind(tag::next) == null);
        int before = room.asked.get();
        Thread.sleep(1000);
        tag.next();
        is(true, room.asked.get() > before);
        ids.close();
        is(Kind.CLOSED, kind(tag::next));
        is(Kind.CLOSED, kind(tag::nextText));
        is(Kind.CLOSED, kind(() -> ids.tag("another").next()));
    }

    /** Names that no tag can have are refused here. */
    private static void names(Room room) {
        try (MarchClient ids = room.client()) {
            for (String name : List.of("", "A", "-a", "a/b", "ä", "a b", "a".repeat(64))) {
                is(Kind.INVALID, kind(() -> ids.next(name)));
                is(Kind.INVALID, kind(() -> ids.tag(name)));
            }
            is(0, room.asked.get());
            room.answers = (x, body) -> room.refuse(x, 400, "invalid");
            is(Kind.INVALID, kind(() -> ids.next("a.b_c-d")));
            room.answers = (x, body) -> room.refuse(x, 403, "denied");
            is(Kind.DENIED, kind(() -> ids.next("a".repeat(63))));
        }
    }

    /** No tag has an ID past its lease's end while an instance hangs. */
    private static void ends(Room room) throws Exception {
        room.ttl = "1s";
        try (MarchClient ids = room.client()) {
            List<Tag> tags = List.of(ids.tag("a"), ids.tag("b"), ids.tag("c"));
            tags.forEach(Tag::warm);
            room.answers = room::hang;
            long end = System.nanoTime() + 1_000_000_000; // of the last lease, at the latest
            while (System.nanoTime() < end) {
                Thread.sleep(10);
                tags.stream().filter(t -> t.held() > 0).forEach(t -> kind(t::next));
            }
            Thread.sleep(50);
            for (Tag tag : tags) { // each asks the room
                FutureTask<Kind> one = new FutureTask<>(() -> kind(tag::next));
                start(one);
                Thread.sleep(20);
                is(false, one.isDone());
            }
        }
    }

    /** An ID is checked as it is taken, and not at a look alone: each, or one of 64 of a fast tag. */
    private static void endAtTake(Room room) throws InterruptedException {
        Map<String, String> part = Map.of("segment.version", "1", "segment.boundary", "1", "segment.range.upper", "1",
            "segment.first", "1", "segment.count", "1000");
        Segment slow = new Segment(part, 1000, Rooms.now(), 500_000_000);
        Segment fast = new Segment(part, 1000, Rooms.now(), 500_000_000);
        fast.unchecked = 63;
        is(1L, slow.take());
        is(1L, fast.take());
        Thread.sleep(510);
        is(-1L, slow.take());
        int late = 0;
        while (fast.take() >= 0) {
            late++;
        }
        is(63, late);
    }

    /** A window ends by the room's clock, though the machine's is behind. */
    private static void windowEnds(Room room) throws Exception {
        room.answers = (x, body) -> {
            long now = System.currentTimeMillis() + 30_000;
            boolean lease = x.getRequestURI().getPath().endsWith("/lease");
            Room.say(x, 200, lease ? time("\"window\":{\"worker\":\"1\",\"fromMs\":\"1\","
                + "\"untilMs\":\"" + (now + 1000) + "\",\"nowMs\":\"" + now + "\"}")
                : "{\"runs\":[{\"first\":\"7\",\"count\":\"1\",\"stride\":\"1\"}]}");
        };
        try (MarchClient ids = room.client()) {
            Tag tag = ids.tag("event");
            is(true, tag.next() != 7);
            room.answers = (x, body) -> room.refuse(x, 409, "refused");
            Thread.sleep(1010);
            is(Kind.REFUSED, kind(tag::next));
        }
    }

    private static String time(String window) {
        return "{\"segment\":null,\"serves\":{" + PART + "},\"time\":{\"tag\":{\"timeBits\":31,\"workerBits\":10,"
            + "\"sequenceBits\":12,\"unit\":\"1s\",\"epochMs\":\"1577836800000\"}," + window + "}}";
    }

    /** An answer whose body does not end does not hold a call up. */
    private static void hangs(Room room) throws Exception {
        room.answers = (x, body) -> {
            x.sendResponseHeaders(200, 1000);
            x.getResponseBody().write('{');
            x.getResponseBody().flush();
            room.end.await();
        };
        MarchClient.Options options = room.options();
        options.timeout = Duration.ofMillis(100);
        try (MarchClient ids = new MarchClient(options)) {
            FutureTask<Kind> call = new FutureTask<>(() -> kind(() -> ids.next("order")));
            start(call);
            is(Kind.UNAVAILABLE, call.get(30, TimeUnit.SECONDS));
        }
    }

    /** A call waits for an answer within the timeout, though that is longer than it would try again. */
    private static void slow(Room room) {
        room.answers = (x, body) -> {
            Thread.sleep(3500);
            room.lease(x, body);
        };
        try (MarchClient ids = room.client()) {
            is(0L, ids.next("order"));
        }
    }

    /** The worker leases again after an answer on which the stack overflows. */
    private static void worker(Room room) throws Exception {
        try (MarchClient ids = room.client()) {
            Tag tag = ids.tag("order");
            tag.warm();
            await("the reserve", () -> tag.held() >= 1000);
            room.answers = (x, body) -> Room.say(x, 200, "[".repeat(200_000));
            int before = room.asked.get();
            tag.nextN(900);
            await("an answer", () -> room.asked.get() > before);
            Thread.sleep(200);
            room.answers = room::lease;
            await("the reserve after an Error", () -> tag.held() >= 1000);
        }
    }

    /** A client's threads keep no process, and end with the client. A tag that is not in use is leased no more. */
    private static void idle(Room room) throws Exception {
        room.ttl = "1s";
        try (MarchClient ids = room.client()) {
            ids.next("idle");
            await("the end of the use", () -> ids.used.isEmpty() && ids.tags.isEmpty());
            ids.next("idle");
        }
        await("the end of the threads", () -> Thread.getAllStackTraces().keySet().stream()
            .filter(t -> t.getName().equals("march")).peek(t -> is(true, t.isDaemon())).count() == 0);
    }

    /** Of a tag that was made anew, as a time-ordered one, the counter's IDs are dropped. */
    private static void anew(Room room) {
        try (MarchClient ids = room.client()) {
            is(0L, ids.next("event"));
            room.answers = (x, body) -> {
                long now = System.currentTimeMillis();
                Room.say(x, 200, time("\"window\":{\"worker\":\"1\",\"fromMs\":\"1\",\"untilMs\":\"" + (now + 60_000)
                    + "\",\"nowMs\":\"" + now + "\"}"));
            };
            ids.tag("event").nextN(1000);
            is(true, ids.next("event") > 1000);
        }
        Map<String, String> lent = new HashMap<>(Map.of("time.tag.timeBits", "40", "time.tag.workerBits", "12",
            "time.tag.sequenceBits", "8", "time.tag.unit", "1s", "time.window.untilMs", "9000"));
        Window before = new Window(lent, 0, "", new Segment.Part(1, 0, 0, 0), null);
        is(1L, before.take(1, 5000).count());
        is(true, new Window(lent, 0, "", before.part, before).take(1, 4000) == null);
        lent.put("time.tag.unit", "2s");
        is(1L, new Window(lent, 0, "", before.part, before).take(1, 4000).count());
    }

    /** Calls of nextN and next at once have all that they ask for. */
    private static void nextN(Room room) throws Exception {
        try (MarchClient ids = room.client()) {
            Tag tag = ids.tag("order");
            tag.warm();
            CountDownLatch asked = new CountDownLatch(1);
            CountDownLatch taken = new CountDownLatch(1);
            room.answers = (x, body) -> {
                asked.countDown();
                taken.await();
                room.lease(x, body);
            };
            FutureTask<Long> many = new FutureTask<>(() ->
                tag.nextN(tag.held() + 500).stream().mapToLong(Tag.Run::count).sum());
            long held = tag.held();
            start(many);
            asked.await();
            tag.next();
            taken.countDown();
            is(held + 500, many.get(30, TimeUnit.SECONDS));
        }
    }

    /** No ID comes twice, whoever takes it how. */
    private static void threads(Room room) throws Exception {
        threads(room.patient(), 20_000);
        MarchClient.Options options = room.patient();
        options.maxStep = 8; // calls of nextN find what others took first
        options.minStep = 8;
        threads(options, 50);
    }

    private static void threads(MarchClient.Options options, int rounds) throws Exception {
        try (MarchClient ids = new MarchClient(options)) {
            List<FutureTask<List<Long>>> all = new ArrayList<>();
            for (int t = 0; t < 4; t++) {
                all.add(new FutureTask<>(() -> {
                    List<Long> mine = new ArrayList<>();
                    for (int k = 0; k < rounds; k++) {
                        mine.add(ids.next("order"));
                        ids.tag("order").nextN(1 + k % 7).forEach(run -> run.ids().forEach(mine::add));
                    }
                    return mine;
                }));
                start(all.get(t));
            }
            Set<Long> taken = new HashSet<>();
            for (FutureTask<List<Long>> one : all) {
                one.get(60, TimeUnit.SECONDS).forEach(id -> is(true, taken.add(id)));
            }
            is(4 * rounds + 4 * IntStream.range(0, rounds).map(k -> 1 + k % 7).sum(), taken.size());
        }
    }

    private static void locale(Room room) {
        Locale before = Locale.getDefault();
        Locale.setDefault(Locale.forLanguageTag("ar-EG-u-nu-arab"));
        try (MarchClient ids = room.client()) {
            ids.next("order");
        } finally {
            Locale.setDefault(before);
        }
    }

    /** A clock that is far ahead borrows one worker, not another one each second. */
    private static void ahead(Room room) throws Exception {
        List<Boolean> held = new CopyOnWriteArrayList<>();
        room.answers = (x, body) -> {
            long now = System.currentTimeMillis() - 30_000;
            boolean lease = x.getRequestURI().getPath().endsWith("/lease");
            if (lease) {
                held.add(body.contains("held"));
            }
            Room.say(x, 200, lease ? time("\"window\":{\"worker\":\"1\",\"fromMs\":\"" + now
                + "\",\"untilMs\":\"" + (now + 600_000) + "\",\"nowMs\":\"" + now + "\"}")
                : "{\"runs\":[{\"first\":\"7\",\"count\":\"1\"}]}");
        };
        try (MarchClient ids = room.client()) {
            for (int k = 0; k < 3; k++, Thread.sleep(1010)) {
                is(7L, ids.next("event"));
            }
            is(1L, held.stream().filter(one -> !one).count());
        }
    }

    /** Texts are asked for again, as the reasons of errors say, and not of a client that was closed. */
    private static void texts(Room room) {
        room.answers = (x, body) -> {
            if (room.asked.get() < 3) {
                room.refuse(x, 503, "unavailable");
            } else {
                Room.say(x, 200, "{\"runs\":[],\"texts\":[\"a\"]}");
            }
        };
        MarchClient ids = room.client();
        Tag tag = ids.tag("text");
        is("a", tag.nextText().text());
        is(3, room.asked.get());
        ids.close();
        is(Kind.CLOSED, kind(tag::nextText));
        is(Kind.CLOSED, kind(() -> tag.parseText("a")));
    }

    /** A token that is not there is no failure of a room. */
    private static void token(Room room) {
        MarchClient.Options options = room.options();
        options.tokenFile = Path.of("/no/token");
        try (MarchClient ids = new MarchClient(options)) {
            is(Kind.UNAUTHENTICATED, kind(() -> ids.next("order")));
            is(0, room.asked.get());
        }
    }

    private static void retryAfter(Room room) {
        is(30L, Rooms.error(429, "", "999999999", "room").retryAfter().toSeconds());
    }

    /** Without a window a room is asked for batches, again after an error that passes. */
    private static void noWindow(Room room) throws Exception {
        AtomicInteger calls = new AtomicInteger();
        room.answers = (x, body) -> {
            long n = room.count(body);
            if (body.contains("nonce")) {
                Room.say(x, 409, "{\"reason\":\"refused\",\"message\":\"no\",\"metadata\":{\"window\":\"none\"}}");
            } else if (n > 1000) {
                room.refuse(x, 400, "invalid");
            } else if (calls.incrementAndGet() % 2 == 0) {
                room.refuse(x, 503, "unavailable");
            } else {
                Room.say(x, 200, "{\"runs\":[{\"first\":\"" + 1000 * calls.get() + "\",\"count\":\"" + n + "\"}]}");
            }
        };
        try (MarchClient ids = room.client()) {
            List<Long> got = new ArrayList<>();
            ids.tag("event").nextN(3500).forEach(run -> run.ids().forEach(got::add));
            is(3500, got.size());
            is(3500, new HashSet<>(got).size());
            is(7, calls.get()); // of 1000 IDs each, every other time in vain
        }
    }

    /** An answer of another program is an error, and neither too few IDs nor ID 0. */
    private static void foreign(Room room) {
        try (MarchClient ids = room.client()) {
            Tag event = ids.tag("event");
            room.answers = (x, body) ->
                Room.say(x, 409, "{\"reason\":\"refused\",\"metadata\":{\"window\":\"none\"}}");
            event.warm();
            String run = "{\"first\":\"1\",\"count\":\"4\"}";
            for (String answer : List.of("[]", "{}", "{\"runs\":[]}", "{\"runs\":[" + run + "]}", "{\"runs\":5}",
                "{\"runs\":[" + run + "," + run + "]}", "{\"texts\":[\"a\"]}", "{\"runs\":[{\"first\":\"x\"}]}",
                "{\"runs\":[" + run + ",{\"first\":\"1\",\"count\":\"2\"},{\"first\":\"1\",\"count\":\"-1\"}]}")) {
                room.answers = (x, body) -> Room.say(x, 200, answer);
                is(Kind.INTERNAL, kind(() -> event.nextN(5)));
                is(Kind.INTERNAL, kind(() -> event.parseText("a")));
            }
            for (String answer : List.of("[", "{\"texts\":[\"a\"]}",
                "{\"texts\":[\"a\"],\"runs\":[{\"first\":\"x\"}]}")) {
                room.answers = (x, body) -> Room.say(x, 200, answer);
                is(Kind.INTERNAL, kind(event::nextText));
            }
        }
    }

    /** If one of several instances has no worker, a room issues IDs, whatever the others say. */
    private static void several(Room room) {
        MarchException none = new MarchException(Kind.REFUSED, "none", null);
        none.noWindow = true;
        MarchException both = Rooms.together(List.of(none, new MarchException(Kind.UNAVAILABLE, "away", null)));
        is(Kind.UNAVAILABLE, both.kind());
        is(true, both.noWindow);
    }

    /** A token goes to this machine alone where there is no TLS. Addresses that cannot be asked are refused. */
    private static void hosts(Room room) {
        for (String host : List.of("127.0.0.1", "127.255.1.20", "localhost", "[::1]", "127.0.0.1.nip.io",
            "127.example.net", "localhost.net")) {
            MarchClient.Options options = new MarchClient.Options("http://" + host + ":1");
            options.tokenFile = Path.of("/no/token");
            try (MarchClient ids = new MarchClient(options)) {
                ids.next("order");
            } catch (MarchException e) {
                is(host.matches(".*(net|io)"), e.getMessage().contains("no TLS"));
            }
        }
        for (String address : List.of("http://my_room:1", "http://127.0.0.256:1", "http://a:70000", "http://a/b")) {
            is(Kind.INVALID, kind(() -> new MarchClient(new MarchClient.Options(address))));
        }
    }

    /** A caller that was interrupted has an error at once, and no room is avoided for that. */
    private static void interrupted(Room room) throws Exception {
        try (MarchClient ids = room.client()) {
            Thread.currentThread().interrupt();
            is(Kind.UNAVAILABLE, kind(() -> ids.tag("text").nextText()));
            is(true, Thread.interrupted());
            is(true, ids.rooms.failed.get(room.url) < 0);
            room.answers = room::hang;
            interrupts(() -> ids.next("order"), () -> room.asked.get() > 0);
            is(true, ids.rooms.failed.get(room.url) < 0);
            room.answers = (x, body) -> {
                long now = System.currentTimeMillis();
                Room.say(x, 200, time("\"window\":{\"worker\":\"1\",\"fromMs\":\"1\",\"untilMs\":\"" + (now + 3_600_000)
                    + "\",\"nowMs\":\"" + now + "\"}").replace("\"1s\"", "\"600s\""));
            };
            List<Tag.Run> tick = ids.tag("event").nextN(1);
            interrupts(() -> ids.tag("event").nextN(10_000), () -> tick.size() == 1); // more than the tick has
        }
    }

    /** A call of a thread that is interrupted, once a thing is so, ends. */
    private static void interrupts(Runnable call, BooleanSupplier when) throws Exception {
        FutureTask<Kind> one = new FutureTask<>(() -> kind(call));
        Thread thread = new Thread(one);
        thread.start();
        await("the call waits", () -> when.getAsBoolean() && thread.getState() == Thread.State.TIMED_WAITING);
        thread.interrupt();
        is(Kind.UNAVAILABLE, one.get(30, TimeUnit.SECONDS));
    }

    /** A room that lags behind leases what callers need at once, not each second, and it refills. */
    private static void lags(Room room) throws Exception {
        room.serves = PART.replace("\"1\"", "\"2\"");
        MarchClient.Options options = room.options();
        options.maxStep = options.minStep;
        try (MarchClient ids = new MarchClient(options)) {
            long began = System.nanoTime();
            for (int k = 0; k < 15; k++) {
                ids.tag("order").nextN(5000);
            }
            is(true, System.nanoTime() - began < 12_000_000_000L);
            Tag order = ids.tag("order");
            for (int k = 0; k < 6; k++) {
                order.nextN(Math.max(order.held() - 500, 1));
                await("refilled", () -> order.held() >= 1000);
            }
            is(true, System.nanoTime() - began < 40_000_000_000L);
        }
    }

    /** All tags that need it are leased ahead at a look, some at once, and each one once. */
    private static void many(Room room) throws Exception {
        MarchClient.Options options = room.patient();
        options.minStep = 1;
        options.maxStep = 1;
        try (MarchClient ids = new MarchClient(options)) {
            List<Tag> tags = new ArrayList<>();
            for (int k = 0; k < 40; k++) {
                tags.add(ids.tag("tag" + k));
                tags.get(k).warm();
            }
            AtomicInteger under = new AtomicInteger();
            CountDownLatch full = new CountDownLatch(MarchClient.REFILLS);
            CountDownLatch go = new CountDownLatch(1);
            room.answers = (x, body) -> {
                is(true, under.incrementAndGet() <= MarchClient.REFILLS);
                full.countDown();
                go.await();
                under.decrementAndGet();
                room.lease(x, body);
            };
            tags.forEach(Tag::next);
            full.await();
            await("all wait", () -> ids.refills.getQueue().size() == tags.size() - MarchClient.REFILLS);
            Thread.sleep(300); // for some looks
            is(tags.size() - MarchClient.REFILLS, ids.refills.getQueue().size());
            FutureTask<Long> one = new FutureTask<>(ids.tag("waiting")::next); // before those that only wait
            room.answers = room::lease;
            start(one);
            one.get(30, TimeUnit.SECONDS);
            go.countDown();
            await("all are leased ahead", () -> tags.stream().allMatch(tag -> tag.held() > 0));
        }
    }

    /** A call ends where rooms lease too few IDs each time. */
    private static void few(Room room) throws Exception {
        room.answers = (x, body) -> Room.say(x, 200, "{\"segment\":{" + PART
            + ",\"first\":\"1\",\"count\":\"1\"},\"ttl\":\"60s\",\"limit\":\"0\",\"serves\":{" + PART + "}}");
        MarchClient.Options options = room.options();
        options.timeout = Duration.ofMillis(500);
        try (MarchClient ids = new MarchClient(options)) {
            FutureTask<Kind> many = new FutureTask<>(() -> kind(() -> ids.tag("order").nextN(1_000_000)));
            start(many);
            is(Kind.UNAVAILABLE, many.get(30, TimeUnit.SECONDS));
        }
    }

    /** A failure of long ago does not leave a call one try. */
    private static void stale(Room room) {
        try (MarchClient ids = room.client()) {
            Tag order = ids.tag("order");
            room.answers = (x, body) -> room.refuse(x, 503, "unavailable");
            is(Kind.UNAVAILABLE, kind(order::next));
            synchronized (order) {
                order.retryAt -= 6_000_000_000L;
            }
            int failures = room.asked.get() + 2;
            room.answers = (x, body) -> {
                if (room.asked.get() > failures) {
                    room.lease(x, body);
                } else {
                    room.refuse(x, 503, "unavailable");
                }
            };
            is(0L, order.next());
        }
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    /** Returns of which kind a call's error is; null if it has none. */
    private static Kind kind(Runnable call) {
        try {
            call.run();
            return null;
        } catch (MarchException e) {
            return e.kind();
        }
    }

    private static void await(String what, BooleanSupplier is) throws InterruptedException {
        for (long end = System.nanoTime() + 30_000_000_000L; !is.getAsBoolean(); Thread.sleep(10)) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not within 30 s: " + what);
            }
        }
    }

    private static void is(Object want, Object got) {
        if (!want.equals(got)) {
            throw new AssertionError("got " + got + ", want " + want);
        }
    }
}

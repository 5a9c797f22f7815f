package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.MarchClient.MOST;
import static io.github.marchid.Rooms.PATIENCE;
import static io.github.marchid.Rooms.SECOND;
import static io.github.marchid.Rooms.now;

import io.github.marchid.MarchException.Kind;
import io.github.marchid.Segment.Part;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Predicate;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/** Issues the IDs of one tag. All methods are safe for concurrent use. */
public final class Tag {
    private static final long BATCH = 1000; // time-ordered IDs that a room issues at once
    private static final long FAST = 1000; // ns; at more IDs than one in that, the end is checked at one of 64
    private static final long AHEAD = 10_000; // ms by which the clock may be ahead of a room's
    private static final long SEEK = 10 * SECOND; // until the next try without a free worker, or of what lags behind
    private static final long UNKNOWN = 60 * SECOND; // for which a name is in use of which a room has leased nothing

    /** An ID as a text. The ID is 0 where the tag's IDs have 80 bits, and exist only as texts. */
    public record Text(String text, long id) {}

    /** {@code count} IDs: first, first + step, and so on. The step is 1, but of time-ordered tags whose worker is last. */
    public record Run(long first, long count, long step) {
        /** Returns the IDs. */
        public LongStream ids() {
            return LongStream.range(0, count).map(k -> first + k * step);
        }

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

    private final String name;
    private final MarchClient client;
    private final Rooms rooms;
    private final String path;

    private volatile Segment head; // of which next takes; null if there is none
    // All below is guarded by this.
    private final List<Segment> segments = new ArrayList<>(); // the head first
    private boolean timed; // the tag is time-ordered
    private Window window; // the last one
    private long target; // of IDs of a lease
    private boolean queued; // to be leased ahead
    private CompletableFuture<Void> leasing = CompletableFuture.completedFuture(null); // the end of the last lease
    private long ttl; // of leases, in ns; 0 before the first
    private long dropped; // IDs that were issued of segments that are no more
    private long looked; // how many were issued at the last look,
    private long lookedAt = now();
    long used = now();
    private long pacedIssued; // when the target was computed
    private long pacedAt = now();
    private MarchException failed; // why the last lease did
    long retryAt; // when to ask again,
    private long replaceAt; // and when in place of what is old

    Tag(MarchClient client, String name) {
        this.client = client;
        this.name = name;
        rooms = client.rooms;
        path = "/v1/tags/" + name;
        target = client.options.minStep;
    }

    /** Returns the tag's name. */
    public String name() {
        return name;
    }

    /** Returns an ID. It waits only while none is held, for some seconds at most. */
    public long next() {
        Segment s = head;
        long id = s != null ? s.take() : -1;
        return id >= 0 ? id : nextN(1).get(0).first();
    }

    /** Returns n IDs, 1 to 1,000,000,000, as runs. */
    public List<Run> nextN(long n) {
        if (n < 1 || n > MOST) {
            throw new MarchException(Kind.INVALID, "count: " + n + "; allowed: 1 to " + MOST, null);
        }
        List<Run> runs = new ArrayList<>();
        long giveUp = now() + rooms.longest;
        if (await(n, runs, giveUp)) {
            for (long left = n; left > 0; left = n - Run.count(runs)) {
                runs.addAll(nextTimed(left));
                await(0, null, giveUp); // notes that the tag is in use
            }
        }
        return runs;
    }

    /** Returns some of n IDs of a time-ordered tag: of its worker's window, or else of a room. */
    private List<Run> nextTimed(long n) {
        Run run;
        synchronized (this) { // so that the time is after the one of each ID before
            run = window != null && now() < window.until ? window.take(n, System.currentTimeMillis()) : null;
        }
        if (run == null) {
            long some = Math.min(n, BATCH);
            return rooms.ask(path + "/next", "{\"count\":\"" + some + "\"}", PATIENCE, (a, url, t) -> Run.of(a, some));
        } else if (run.count() == 0) { // the tick is full
            Rooms.sleep(SECOND / 1000);
            return List.of();
        }
        return List.of(run);
    }

    /** Returns an ID as a text, by the tag's format, of a room. */
    public Text nextText() {
        return rooms.ask(path + "/next", "{\"count\":\"1\",\"texts\":true}", PATIENCE, (answer, url, sent) -> {
            if (!answer.containsKey("texts.0")) {
                throw new MarchException(Kind.REFUSED, "tag " + name + ": it has no format, so its IDs have no texts",
                    null);
            }
            String id = answer.containsKey("runs") ? "0" : answer.get("runs.0.first");
            return new Text(answer.get("texts.0"), Long.parseLong(id));
        });
    }

    /** Returns the ID of a text, of a room. */
    public long parseText(String text) {
        String escaped = URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
        return rooms.ask(path + ":parse?text=" + escaped, null, PATIENCE, (a, url, t) -> Long.parseLong(a.get("id")));
    }

    /** Returns when IDs are held. */
    public void warm() {
        await(1, null, now() + rooms.longest);
    }

    /** Returns how many IDs are held. */
    public synchronized long held() {
        drop(s -> false);
        return count();
    }

    /** Drops all. */
    synchronized void close() {
        drop(s -> true);
        leasing.complete(null);
    }

    /** Drops what has ended, and has IDs leased ahead while the tag is in use. It never waits for a room. */
    synchronized void tend() {
        long at = now();
        long issued = issued();
        drop(s -> false);
        if (head != null) { // the next look is long before the end
            head.unchecked = issued - looked > (at - lookedAt) / FAST && head.until > at + SECOND ? 63 : 0;
        }
        used = issued != looked ? at : used;
        looked = issued;
        lookedAt = at;
        if (at - used < (ttl > 0 ? ttl : UNKNOWN)) {
            queued = queued || needsMore() && starts(client.refills, this::refill);
        } else if (count() == 0 && leasing.isDone() && (window == null || at >= window.until)) {
            timed = false; // the next call leases, and has the tag looked after again
            failed = null;
            client.used.remove(this);
            client.tags.remove(name, this);
        }
    }

    private void refill() {
        synchronized (this) {
            queued = false;
            if (!client.used.contains(this) || !needsMore()) {
                return;
            }
            leasing = new CompletableFuture<>();
        }
        lease(target);
    }

    /** Has a thread work, and returns whether one can. */
    private static boolean starts(Executor threads, Runnable work) {
        try {
            threads.execute(work);
            return true;
        } catch (RejectedExecutionException | OutOfMemoryError e) { // which says that no thread can start, too
            return false;
        }
    }

    /** Whether to lease ahead now. */
    private boolean needsMore() {
        long at = now();
        return ttl > 0 && at >= retryAt && leasing.isDone() && (timed
            ? window == null || window.due <= at || client.newest.outdates(window.part) : count() < target
            || segments.stream().anyMatch(s -> s.due <= at || at >= replaceAt && client.newest.outdates(s.part)));
    }

    /** Takes n IDs, unless runs is null, as soon as they are held; none of a time-ordered tag. Returns if it is one. */
    private boolean await(long n, List<Run> runs, long giveUp) {
        while (true) {
            CompletableFuture<Void> end;
            synchronized (this) {
                used = now();
                drop(s -> false);
                long missing = n - count();
                if (rooms.closed()) {
                    throw new MarchException(Kind.CLOSED, "the client was closed", null);
                } else if (timed || runs == null && missing <= 0 || missing <= 0 && take(n, runs)) {
                    return timed;
                } else if (used >= giveUp) {
                    throw new MarchException(Kind.UNAVAILABLE, "tag " + name + ": no IDs within "
                        + rooms.longest / SECOND + " s", null);
                } else if (missing <= 0) {
                    continue; // calls of next were faster
                } else if (leasing.isDone()) {
                    if (failed != null && used < retryAt) {
                        throw new MarchException(failed, failed.getMessage());
                    } else if (!starts(client.leases, () -> lease(Math.min(Math.max(missing, target), MOST)))) {
                        throw new MarchException(Kind.UNAVAILABLE, "tag " + name + ": no thread can start", null);
                    }
                    leasing = new CompletableFuture<>(); // which its thread reads when it has the lock
                }
                end = leasing;
            }
            try {
                end.get(giveUp - used, TimeUnit.NANOSECONDS);
            } catch (InterruptedException e) {
                throw Rooms.interrupted(e);
            } catch (ExecutionException | TimeoutException e) {
                continue; // the call gives up
            }
        }
    }

    /** Takes n IDs, or none if calls of next, which take of the head alone, were faster. */
    private boolean take(long n, List<Run> runs) {
        List<Segment> others = segments.subList(1, segments.size());
        long left = n - segments.get(0).take(n, n - others.stream().mapToLong(Segment::count).sum(), runs);
        for (Segment s : left > n ? List.<Segment>of() : others) {
            left -= s.take(left, 0, runs);
        }
        return left == 0;
    }

    private long count() {
        return segments.stream().mapToLong(Segment::count).sum();
    }

    private long issued() {
        return dropped + segments.stream().mapToLong(s -> s.get() - s.start).sum();
    }

    /** Drops segments that have ended, or that something else ends, at once. */
    private void drop(Predicate<Segment> ends) {
        long at = now();
        segments.removeIf(s -> {
            boolean end = s.count() == 0 || s.until <= at || ends.test(s);
            if (end) {
                s.cut(0);
                dropped += s.get() - s.start;
            }
            return end;
        });
        head = segments.isEmpty() ? null : segments.get(0);
    }

    /** Leases n IDs, or a window, or notes why not. One lease of a tag is under way; while they fail each is one try. */
    private void lease(long n) {
        try {
            boolean failing = failed != null && failed.temporary() && now() < retryAt + Rooms.AVOID;
            String nonce = UUID.randomUUID().toString();
            String held = window == null ? ""
                : ",\"held\":{\"worker\":\"" + window.worker + "\",\"nonce\":\"" + window.nonce + "\"}";
            String request = "{\"count\":\"" + n + "\",\"window\":{\"nonce\":\"" + nonce + "\",\"age\":\""
                + (now() - client.began) / SECOND + "s\"" + held + "}}";
            rooms.ask(path + "/lease", request, failing ? 0 : PATIENCE,
                (answer, url, sent) -> accept(answer, url, sent, n, nonce));
        } catch (RuntimeException | Error e) { // whatever it is, callers go on
            fail(e instanceof MarchException m ? m : new MarchException(Kind.INTERNAL, "tag " + name + ": " + e, e));
        } finally {
            synchronized (this) {
                leasing.complete(null);
            }
        }
    }

    private synchronized void fail(MarchException e) {
        failed = e;
        retryAt = now() + (e.noWindow ? SEEK : e.kind() == Kind.UNAVAILABLE
            ? ThreadLocalRandom.current().nextLong(SECOND / 2, SECOND * 3 / 4) : e.retryAfter);
        if (e.noWindow) {
            timed = true;
            ttl = ttl > 0 ? ttl : UNKNOWN;
            client.used.add(this);
            drop(s -> true); // of a counter of this name that is no more
        }
        segments.forEach(s -> s.cut(e.limit > 0 ? e.limit : Long.MAX_VALUE));
    }

    /** Adds what an answer leases, and returns it. Its error says why it cannot. */
    private synchronized boolean accept(Map<String, String> answer, String url, long sent, long asked, String nonce) {
        client.used.add(this);
        if (rooms.closed()) { // looked at last: close drops what those tags hold that it finds
            return false;
        }
        long at = now();
        if (!rooms.fallback.contains(url)) { // an instance may lease under a layout that it does not report
            Part serves = Part.of(answer, "serves");
            Part part = Part.of(answer, "segment");
            client.heard(serves.version() > part.version() ? serves : part);
            if (Math.max(serves.version(), part.version()) < client.newest.version()) {
                rooms.lagging.put(url, at); // but what it leases is valid
            }
        }
        boolean lags = false;
        boolean windows = answer.containsKey("time.window.worker");
        if (windows) {
            window = new Window(answer, sent, nonce, new Part(client.newest.version(), 0, 0, 0), window);
            ttl = window.ttl;
            if (System.currentTimeMillis() - (at - sent) / 1_000_000 - window.there > AHEAD) {
                window.until = 0; // rooms issue each ID
            }
            drop(s -> true); // of a counter of this name that is no more
        } else {
            Segment s = new Segment(answer, asked, sent, Window.nanos(answer.get("ttl")));
            long limit = number(answer, "limit") > 0 ? number(answer, "limit") : Long.MAX_VALUE;
            segments.forEach(each -> each.cut(limit));
            s.cut(limit);
            if (s.until <= at) {
                throw new MarchException(Kind.UNAVAILABLE,
                    "room at " + url + ": its answer took longer than " + answer.get("ttl"), null);
            } else if (s.count() == 0) {
                throw new MarchException(Kind.EXHAUSTED, "tag " + name + ": no ID is left below its limit", null);
            }
            lags = client.newest.outdates(s.part);
            boolean replaces = !lags;
            drop(each -> each.due <= at || replaces && client.newest.outdates(each.part));
            pace(at);
            ttl = s.ttl > 0 ? s.ttl : Long.MAX_VALUE;
            segments.add(s);
            drop(each -> false); // so that next finds it
        }
        timed = windows;
        failed = null;
        retryAt = 0;
        replaceAt = lags ? at + SEEK : 0;
        return true;
    }

    /** Sets the target by the rate since it was last set. */
    private void pace(long at) {
        MarchClient.Options options = client.options;
        long taken = issued() - pacedIssued;
        long took = at - pacedAt;
        if (taken >= target / 8 || took >= 10 * SECOND) { // enough to tell the rate
            double wanted = taken / (double) Math.max(took, 1_000_000) * options.reserve.toNanos() * 8 / 7;
            wanted = Math.min(Math.max(wanted, target / 2.0), target * 2.0);
            target = (long) Math.min(Math.max(wanted, options.minStep), options.maxStep);
            pacedIssued += taken;
            pacedAt = at;
        }
    }
}

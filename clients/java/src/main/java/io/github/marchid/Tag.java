package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.MarchClient.MOST;
import static io.github.marchid.Rooms.PATIENCE;
import static io.github.marchid.Rooms.SECOND;
import static io.github.marchid.Rooms.now;

import io.github.marchid.MarchException.Kind;
import io.github.marchid.Rooms.Answer;
import io.github.marchid.Segment.Part;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Function;
import java.util.function.Predicate;

/** Issues the IDs of one tag. All methods are safe for concurrent use. */
public final class Tag {
    private static final long BATCH = 1000; // time-ordered IDs that a room issues at once
    private static final long FAST = 1000; // ns; at more IDs than one in that, the end is checked at one of 64
    private static final long AHEAD = 10_000; // ms by which the clock may be ahead of a room's
    private static final long SEEK = 10 * SECOND; // until the next try without a free worker, or of what lags behind
    private static final long UNKNOWN = 60 * SECOND; // for which a name is in use of which a room has leased nothing

    private final String name;
    private final MarchClient client;
    private final Rooms rooms;
    private final String path;

    private volatile Segment head = Segment.NONE; // of which next takes
    private long unchecked; // see Segment.take; read after head
    // All below is guarded by this.
    private final List<Segment> segments = new ArrayList<>(); // the head first
    private boolean timed; // the tag is time-ordered
    private Window window; // the last one
    private long target; // of IDs of a lease
    private boolean queued; // to be leased ahead
    private Thread leaser; // of the lease under way, if there is one,
    private long asked; // and its IDs
    private long ttl; // of leases, in ns; 0 before the first
    private long leased; // IDs, but for those that were dropped
    private long looked; // how many were issued at the last look,
    private long lookedAt = now();
    private long fastAt = now() - SECOND; // when it was found that many are taken
    long used = now();
    private long pacedIssued; // when the target was computed
    private long pacedAt = now();
    private volatile MarchException failed; // why the last lease did
    private long retryAt; // when to ask again,
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
        long id = head.take(unchecked);
        return id >= 0 ? id : nextN(1).get(0).first();
    }

    /** Returns n IDs, 1 to 1,000,000,000, as runs. */
    public List<Run> nextN(long n) {
        if (n < 1 || n > MOST) {
            throw new MarchException(Kind.INVALID, "count: " + n + "; allowed: 1 to " + MOST, null);
        }
        List<Run> runs = new ArrayList<>();
        await(n, runs);
        for (long left = n - Run.count(runs); left > 0; left = n - Run.count(runs)) {
            runs.addAll(nextTimed(left));
        }
        return runs;
    }

    /** Takes n IDs, or none if calls of next(), which take of the head alone, were faster. */
    private boolean take(long n, List<Run> runs) {
        Segment first = head;
        List<Segment> others = segments.subList(1, segments.size());
        long more = others.stream().mapToLong(Segment::count).sum();
        long from = first.get();
        long some = Math.min(n, first.left(from));
        if (more < n - some || !first.compareAndSet(from, from + some)) {
            return false;
        }
        first.add(from, from + some, runs);
        for (Segment s : others) {
            n -= some;
            some = Math.min(n, s.count());
            from = s.getAndAdd(some);
            s.add(from, from + some, runs);
        }
        return true;
    }

    /** Returns some of n IDs of a time-ordered tag: of its worker's window, or else of a room. */
    private List<Run> nextTimed(long n) {
        long at;
        Run run;
        synchronized (this) {
            has(0, null, 0);
            at = System.currentTimeMillis(); // after the one of each ID before
            run = window != null && now() < window.until ? window.take(n, at) : null;
        }
        if (run == null) {
            long some = Math.min(n, BATCH);
            return rooms.ask(path + "/next", "{\"count\":\"" + some + "\"}", PATIENCE, a -> Run.of(a, some)).body();
        } else if (run.count() == 0) { // the tick is full
            Rooms.pause(window.left(at) * 1_000_000);
            return List.of();
        }
        return List.of(run);
    }

    /** Returns an ID as a text, by the tag's format, of a room. */
    public Text nextText() {
        return rooms.ask(path + "/next", "{\"count\":\"1\",\"texts\":true}", PATIENCE, answer -> {
            if (!answer.containsKey("texts.0")) {
                throw new MarchException(Kind.REFUSED, "tag " + name + ": it has no format, so its IDs have no texts",
                    null);
            }
            String id = answer.containsKey("runs") ? "0" : answer.get("runs.0.first");
            return new Text(answer.get("texts.0"), Long.parseLong(id));
        }).body();
    }

    /** Returns the ID of a text, of a room. */
    public long parseText(String text) {
        String escaped = URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
        return rooms.ask(path + ":parse?text=" + escaped, null, PATIENCE, a -> Long.parseLong(a.get("id"))).body();
    }

    /** Returns when IDs are held. */
    public void warm() {
        await(1, null);
    }

    /** Returns how many IDs are held. */
    public synchronized long held() {
        drop(s -> false);
        return count();
    }

    /** Drops all. */
    synchronized void close() {
        drop(s -> true);
        notifyAll();
    }

    /** Drops what has ended, and has IDs leased ahead while the tag is in use. It never waits for a room. */
    synchronized void tend() {
        unchecked = 0; // should this fail
        drop(s -> false);
        long at = now();
        long issued = leased - count();
        fastAt = issued - looked > (at - lookedAt) / FAST ? at : fastAt;
        used = issued != looked ? at : used;
        looked = issued;
        lookedAt = at;
        unchecked = at - fastAt < SECOND && head.until > at + SECOND ? 63 : 0; // the next look is long before the end
        if (at - used < (ttl > 0 ? ttl : UNKNOWN)) {
            if (!queued && needsMore()) {
                client.refills.execute(() -> lease(0));
                queued = true;
            }
        } else if (count() == 0) {
            timed = false; // the next call leases, and has the tag looked after again
            failed = null;
            client.used.remove(this);
            client.tags.remove(name, this);
        }
    }

    /** Whether to lease ahead now. */
    private boolean needsMore() {
        long at = now();
        return ttl > 0 && at >= retryAt && leaser == null && (timed ? window == null || old(window.part, window.due)
            : count() < target || at >= replaceAt && segments.stream().anyMatch(this::old));
    }

    /** Takes n IDs, unless runs is null, as soon as they are held. Of a time-ordered tag a room issues, too. */
    private void await(long n, List<Run> runs) {
        long giveUp = now() + rooms.longest;
        for (long missing = has(n, runs, giveUp); missing > 0; missing = has(n, runs, giveUp)) {
            lease(missing);
        }
    }

    /** Takes n IDs if they are held, after the lease that is under way; or returns how many the caller is to lease. */
    private synchronized long has(long n, List<Run> runs, long giveUp) {
        for (int tries = 0; !rooms.closed;) {
            used = now();
            drop(s -> false);
            long missing = n - count();
            if (timed || missing <= 0) {
                if (timed || runs == null || take(n, runs)) {
                    return 0;
                } else if (++tries % 10 == 0) { // others were faster; tend may be waiting
                    pause(1);
                }
            } else if (leaser == null && failed != null && used < retryAt) {
                throw failed.again(failed.getMessage());
            } else if (used >= giveUp) {
                throw new MarchException(Kind.UNAVAILABLE, "tag " + name + ": no IDs within "
                    + rooms.longest / SECOND + " s", null);
            } else if (leaser != null) {
                pause(0);
            } else {
                return Math.min(Math.max(missing, target), MOST);
            }
        }
        throw new MarchException(Kind.CLOSED, "the client was closed", null);
    }

    /** Lets others have the tag until a lease ends, or for some ms unless they are 0. */
    private void pause(long most) {
        try {
            wait(most);
        } catch (InterruptedException e) {
            throw Rooms.interrupted(e);
        }
    }

    private long count() {
        return segments.stream().mapToLong(Segment::count).sum();
    }

    /** Drops segments that have ended, or that something else ends, at once. */
    private void drop(Predicate<Segment> ends) {
        long at = now();
        segments.removeIf(s -> {
            if (s.count() > 0 && s.until > at && !ends.test(s)) {
                return false;
            }
            leased -= s.cut(0);
            return true;
        });
        Segment first = segments.isEmpty() ? Segment.NONE : segments.get(0);
        if (head != first) {
            unchecked = 0; // until the next look: it may end sooner
            head = first;
        }
    }

    /** Whether to replace what is held: it ends soon, or the room gave up a part of its range. */
    private boolean old(Part part, long due) {
        return due <= now() || client.newest.outdates(part);
    }

    private boolean old(Segment s) {
        return old(s.part, s.due);
    }

    /** Begins to lease n IDs, or those to lease ahead if it is 0, unless a lease is under way. */
    private synchronized boolean begins(long n) {
        queued &= n > 0;
        if (leaser != null || n == 0 && !needsMore()) {
            return false;
        }
        asked = n > 0 ? n : target;
        leaser = Thread.currentThread();
        return true;
    }

    /** Leases n IDs, or a window, or notes why not. While leases fail each is one try. */
    private void lease(long n) {
        try {
            if (!begins(n)) {
                return;
            }
            String nonce = UUID.randomUUID().toString();
            long patience = failed != null && failed.temporary() ? 0 : PATIENCE;
            accept(rooms.ask(path + "/lease", request(nonce), patience, Function.identity()), nonce);
        } catch (MarchException e) {
            if (Thread.currentThread().isInterrupted()) { // which is no failure for other callers
                throw e;
            }
            fail(e);
        } catch (RuntimeException | Error e) { // whatever it is, callers go on
            fail(new MarchException(Kind.INTERNAL, "tag " + name + ": an answer makes no sense", e));
        } finally {
            synchronized (this) {
                leaser = leaser == Thread.currentThread() ? null : leaser;
                notifyAll();
            }
        }
    }

    private synchronized String request(String nonce) {
        String held = window == null ? ""
            : ",\"held\":{\"worker\":\"" + window.worker + "\",\"nonce\":\"" + window.nonce + "\"}";
        return "{\"count\":\"" + asked + "\",\"window\":{\"nonce\":\"" + nonce + "\",\"age\":\""
            + (now() - client.began) / SECOND + "s\"" + held + "}}";
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
        if (e.limit > 0) {
            segments.forEach(s -> leased -= s.cut(e.limit));
        }
    }

    /** Adds what an answer leases. Its error says why it cannot. */
    private synchronized void accept(Answer<Map<String, String>> answer, String nonce) {
        Map<String, String> body = answer.body();
        long at = now();
        client.used.add(this);
        if (rooms.closed) { // looked at last: close drops what those tags hold that it finds
            return;
        }
        if (!rooms.fallback.contains(answer.url())) { // an instance may lease under a layout that it does not report
            client.heard(Part.of(body, "serves"));
            client.heard(Part.of(body, "segment"));
        }
        boolean again = false;
        boolean windows = body.containsKey("time.window.worker");
        if (windows) {
            window = new Window(body, answer.sent(), nonce, new Part(client.newest.version(), 0, 0, 0), window);
            ttl = window.ttl;
            if (System.currentTimeMillis() - (at - answer.sent()) / 1_000_000 - window.there > AHEAD) {
                window.until = 0; // rooms issue each ID
            }
            drop(s -> true); // of a counter of this name that is no more
        } else {
            Segment s = new Segment(body, asked, answer.sent(), Window.nanos(body.get("ttl")));
            long limit = number(body, "limit") > 0 ? number(body, "limit") : Long.MAX_VALUE;
            segments.forEach(each -> leased -= each.cut(limit));
            s.cut(limit);
            if (s.until <= at) {
                throw new MarchException(Kind.UNAVAILABLE,
                    "room at " + answer.url() + ": its answer took longer than " + body.get("ttl"), null);
            } else if (s.count() == 0) {
                throw new MarchException(Kind.EXHAUSTED, "tag " + name + ": no ID is left below its limit", null);
            }
            again = old(s);
            if (!again) {
                drop(this::old);
            }
            pace(at);
            ttl = s.ttl > 0 ? s.ttl : Long.MAX_VALUE;
            leased += s.count();
            segments.add(s);
            drop(each -> false); // so that next finds it
        }
        timed = windows;
        failed = null;
        retryAt = 0;
        replaceAt = again ? at + SEEK : 0;
    }

    /** Sets the target by the rate since it was last set. */
    private void pace(long at) {
        long issued = leased - count();
        long taken = issued - pacedIssued;
        long took = at - pacedAt;
        if (taken >= target / 8 || took >= 10 * SECOND) { // enough to tell the rate
            double wanted = taken * 1e9 / Math.max(took, 1_000_000) * client.options.reserve * 8 / 7;
            wanted = Math.min(Math.max(wanted, target / 2.0), target * 2.0);
            target = (long) Math.min(Math.max(wanted, client.options.minStep), client.options.maxStep);
            pacedIssued = issued;
            pacedAt = at;
        }
    }
}

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
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.Predicate;

/** Issues the IDs of one tag. All methods are safe for concurrent use. */
public final class Tag {
    private static final long BATCH = 100_000; // IDs of a request at most
    private static final long LOOK = SECOND / 10; // between two looks at a tag in use
    private static final long FAST = 1000; // ns; at more IDs than one in that, the end is checked at one of 64
    private static final long AHEAD = 10_000; // ms by which the clock may be ahead of a room's
    private static final long SEEK = 10 * SECOND; // until a client asks for a worker again where none was free
    private static final Set<Kind> GONE = EnumSet.of(Kind.NOT_FOUND, Kind.INVALID, Kind.DENIED);

    private final String name;
    private final MarchClient client;
    private final Rooms rooms;
    private final String path;

    private volatile Segment head = Segment.NONE; // of which next takes
    private long unchecked; // see Segment.take; read after head
    volatile boolean kept; // the program has a handle
    private volatile boolean timed; // the tag is time-ordered
    // All below is guarded by this.
    private final List<Segment> segments = new ArrayList<>(); // the head first
    private Window window; // the last one
    private boolean known; // whether a room has leased anything
    private boolean working;
    private long wanted; // IDs for which a caller waits
    private long target;
    private long ttl; // ns; 0 for no end
    private long leased; // IDs, but for those that were dropped
    private long looked; // how many were issued at the last look,
    private long lookedAt = now();
    private long used = now();
    private long pacedIssued; // when the target was computed
    private long pacedAt = now();
    private MarchException failed; // why the last lease did
    private long retryAt;
    private long replaceAt; // when to replace what is old

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
            throw new MarchException(Kind.INVALID, "count: " + n + "; allowed: 1 to " + MOST);
        }
        List<Run> runs = new ArrayList<>();
        synchronized (this) {
            do {
                await(n);
            } while (!timed && !take(n, runs)); // others took some
            if (need(now()) > 0) {
                wake();
            }
        }
        return runs.isEmpty() ? nextTimed(n) : runs;
    }

    /** Takes n IDs, or none if calls of next(), which take of the head alone, were faster. */
    private boolean take(long n, List<Run> runs) {
        Segment first = head;
        long from = first.get();
        long some = Math.min(n, first.left(from));
        List<Segment> others = segments.subList(1, segments.size());
        if (others.stream().mapToLong(Segment::count).sum() < n - some || !first.compareAndSet(from, from + some)) {
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

    /** Returns n IDs of a time-ordered tag: of its worker's window, or else of a room. */
    private List<Run> nextTimed(long n) {
        List<Run> runs = new ArrayList<>();
        for (long most = BATCH; n > 0;) {
            long at;
            Run run;
            synchronized (this) {
                await(0);
                at = System.currentTimeMillis(); // after the one of each ID before
                run = window != null && now() < window.until ? window.take(n, at) : null;
            }
            if (run != null && run.count() == 0) {
                pause(window.left(at) * 1_000_000); // the tick is full
            } else if (run != null) {
                runs.add(run);
                n -= run.count();
            } else {
                long some = Math.min(n, most);
                try {
                    runs.addAll(rooms.ask(path + "/next", "{\"count\":\"" + some + "\"}", PATIENCE,
                        answer -> Run.of(answer, some)).body());
                    n -= some;
                } catch (MarchException e) {
                    most = some / 2; // more than one worker has in a second
                    if (e.kind() != Kind.INVALID || most == 0) {
                        throw e;
                    }
                }
            }
        }
        return runs;
    }

    /** Returns an ID as a text, by the tag's format, of a room. */
    public Text nextText() {
        return rooms.ask(path + "/next", "{\"count\":\"1\",\"texts\":true}", PATIENCE, answer -> {
            if (!answer.containsKey("texts.0")) {
                throw new MarchException(Kind.REFUSED, "tag " + name + ": it has no format, so its IDs have no texts");
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
    public synchronized void warm() {
        await(1);
    }

    /** Returns how many IDs are held. */
    public synchronized long held() {
        drop(s -> false);
        return segments.stream().mapToLong(Segment::count).sum();
    }

    /** Waits until n IDs are held, or the tag is time-ordered: without a window a room issues. */
    private synchronized void await(long n) {
        for (long giveUp = now() + (failed == null ? rooms.longest : PATIENCE);;) {
            long at = now();
            used = at;
            long missing = n - held();
            if (rooms.closed) {
                throw new MarchException(Kind.CLOSED, "the client was closed");
            } else if (timed || missing <= 0) {
                return;
            } else if (failed != null && at < retryAt) {
                throw failed.again();
            } else if (at >= giveUp) {
                throw new MarchException(Kind.UNAVAILABLE, "tag " + name + ": too few IDs are leased in time");
            }
            if (missing > wanted) { // or else callers would wake each other
                wanted = missing;
                wake();
            }
            if (wanted > 0) { // or else no thread could start
                pause(giveUp - at);
            }
        }
    }

    private synchronized void pause(long nanos) {
        try {
            wait(Math.max(nanos / 1_000_000, 1));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new MarchException(Kind.UNAVAILABLE, "interrupted", SECOND, 0, false, e);
        }
    }

    /** Drops segments that have ended, or that something else ends, at once. */
    synchronized void drop(Predicate<Segment> ends) {
        long at = now();
        segments.removeIf(s -> {
            if (s.count() > 0 && s.until > at && !ends.test(s)) {
                return false;
            }
            leased -= s.count();
            s.cut(0);
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

    /** Returns how many IDs to lease now. Of a window it is any number. */
    private synchronized long need(long at) {
        if (at < retryAt || !known && wanted == 0) {
            return 0;
        }
        long held = held();
        long ahead = held < target ? target : 0;
        if (timed) {
            ahead = window == null || old(window.part, window.due) ? 1 : 0;
        } else if (at >= replaceAt && segments.stream().anyMatch(this::old)) {
            ahead = Math.max(target, Math.min(held, 2 * target));
        }
        return Math.min(Math.max(wanted, ahead), MOST);
    }

    /** Has the worker lease. */
    private synchronized void wake() {
        try {
            if (!working) {
                Thread worker = new Thread(this::work, "march-" + name);
                worker.setDaemon(true);
                worker.start();
                working = true;
            }
        } catch (OutOfMemoryError e) { // no thread can start now
            fail(new MarchException(Kind.UNAVAILABLE, "tag " + name + ": " + e.getMessage()));
        }
        notifyAll();
    }

    /** Leases ahead, while the tag is in use. */
    private void work() {
        try {
            for (long n = look(); n > 0; n = look()) {
                lease(n);
            }
        } catch (RuntimeException | Error e) { // no memory, say: the next call starts another one
            synchronized (this) {
                fail(new MarchException(Kind.INTERNAL, "tag " + name + ": " + e));
                working = false;
                notifyAll();
            }
        }
    }

    /** Waits until IDs are to be leased, and returns how many; 0 if the tag is not in use. */
    private synchronized long look() {
        for (;;) {
            long at = now();
            long issued = leased - held();
            used = issued != looked ? at : used;
            boolean ending = head.until < at + SECOND; // before the next look, or soon after it
            unchecked = issued - looked > (at - lookedAt) / FAST && !ending ? 63 : 0;
            looked = issued;
            lookedAt = at;
            working = !rooms.closed && (wanted > 0 || known && (ttl == 0 || at - used < ttl));
            long n = working ? need(at) : 0;
            if (n > 0 || !working) {
                unchecked = 0; // until the next look, which a lease may hold up
                return n;
            }
            pause(at - used < SECOND ? LOOK : SECOND);
        }
    }

    /** Leases n IDs, or a window, or notes why not. While leases fail each is one try. */
    private void lease(long n) {
        String nonce = UUID.randomUUID().toString();
        String held = window == null ? ""
            : ",\"held\":{\"worker\":\"" + window.worker + "\",\"nonce\":\"" + window.nonce + "\"}";
        String body = "{\"count\":\"" + n + "\",\"window\":{\"nonce\":\"" + nonce + "\",\"age\":\""
            + (now() - client.began) / SECOND + "s\"" + held + "}}";
        long patience = failed != null && failed.temporary() ? 0 : PATIENCE;
        try {
            accept(rooms.ask(path + "/lease", body, patience, Function.identity()), n, nonce);
        } catch (MarchException e) {
            fail(e);
        } catch (RuntimeException | Error e) { // whatever it is, callers and the worker go on
            fail(new MarchException(Kind.INTERNAL, "tag " + name + ": an answer makes no sense", SECOND, 0, false, e));
        }
        synchronized (this) {
            notifyAll();
        }
    }

    private synchronized void fail(MarchException e) {
        failed = e;
        wanted = 0;
        retryAt = now() + (e.noWindow() ? SEEK : e.kind() == Kind.UNAVAILABLE ? SECOND / 2 : e.retryAfter().toNanos());
        timed |= e.noWindow();
        known |= e.noWindow();
        if (e.limit() > 0) {
            segments.forEach(s -> s.cut(e.limit()));
        }
        if (!known && GONE.contains(e.kind())) {
            client.forget(this); // so that names of no tag do not fill the memory
        }
    }

    /** Adds what an answer leases. Its error says why it cannot. */
    private synchronized void accept(Answer<Map<String, String>> answer, long asked, String nonce) {
        Map<String, String> body = answer.body();
        long at = now();
        if (rooms.closed) {
            return;
        } else if (!rooms.fallback.contains(answer.url()) && !client.heard(Part.of(body, "serves"))) {
            rooms.failed.put(answer.url(), at); // it lags behind, but what it leases is valid
        }
        known = true;
        timed = body.containsKey("time.window.worker");
        if (timed) {
            Part newest = new Part(client.newest.version(), 0, 0, 0);
            window = new Window(body, answer.sent(), nonce, newest, window);
            ttl = window.ttl;
            if (System.currentTimeMillis() - (at - answer.sent()) / 1_000_000 - window.there > AHEAD) {
                window.until = 0; // rooms issue each ID
            }
        } else {
            Segment s = new Segment(body, asked, answer.sent(), Window.nanos(body.get("ttl")));
            long limit = number(body, "limit") > 0 ? number(body, "limit") : Long.MAX_VALUE;
            segments.forEach(each -> each.cut(limit));
            s.cut(limit);
            if (s.until <= at) {
                throw new MarchException(Kind.UNAVAILABLE,
                    "room at " + answer.url() + ": its answer took longer than " + body.get("ttl"));
            } else if (s.count() == 0) {
                throw new MarchException(Kind.EXHAUSTED, "tag " + name + ": no ID is left below its limit");
            }
            boolean again = old(s);
            if (!again) {
                drop(this::old);
            }
            pace(at);
            ttl = s.ttl;
            leased += s.count();
            segments.add(s);
            // While rooms lag behind, what they lease is replaced after growing pauses. Callers' needs do not wait.
            replaceAt = again ? at + (SECOND / 2 << Math.min(segments.stream().filter(this::old).count(), 7)) : 0;
        }
        failed = null;
        wanted = 0;
        retryAt = 0;
    }

    /** Sets the target by the rate since it was last set. */
    private void pace(long at) {
        long issued = leased - held();
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

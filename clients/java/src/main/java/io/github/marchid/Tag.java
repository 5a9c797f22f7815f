package io.github.marchid;

import static io.github.marchid.Json.number;
import static io.github.marchid.Json.object;
import static io.github.marchid.MarchClient.MOST;
import static io.github.marchid.Rooms.SECOND;
import static io.github.marchid.Rooms.now;

import io.github.marchid.MarchException.Kind;
import io.github.marchid.Rooms.Answer;
import io.github.marchid.Rooms.Room;
import io.github.marchid.Segment.Part;
import io.github.marchid.Ticks.Window;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;

/** Issues the IDs of one tag. All methods are safe for concurrent use. */
public final class Tag {
    private static final long PATIENCE = 3 * SECOND; // for which callers wait for rooms; later ones get the error
    private static final long BATCH = 100_000; // IDs of a request at most
    private static final long FAST = 1000; // ns; at more IDs than one in that, the end is checked at one of 64
    private static final long AHEAD = 10_000; // ms by which the clock may be ahead of a room's
    private static final Set<Kind> GONE = EnumSet.of(Kind.NOT_FOUND, Kind.INVALID, Kind.DENIED);
    private static final long NEVER = Long.MAX_VALUE;

    private final String name;
    private final MarchClient client;
    private final String path;
    private final Link none = Link.of(new Segment(new Part(0, 1, 0, 1), 0, 0, NEVER), 1);

    private volatile Link head = none; // the IDs that next takes
    private long unchecked; // see Link.take; read after head
    volatile boolean kept; // the program has a handle
    // All below is guarded by client.lock.
    private Deque<Segment> segments = new ArrayDeque<>(); // after the head
    private volatile boolean timed; // the tag is time-ordered:
    private Ticks ticks;
    private Window window = new Window(0, 0, 0);
    private long windowEnds; // by the client's clock
    private Room lender; // of the window's worker, and the proof that it is ours
    private String nonce = "";
    private long renewAt;
    private volatile long batch = BATCH; // IDs that a room issues at once
    private long version; // the newest layout when the window was leased
    private boolean known; // whether a room has leased anything
    private boolean gone; // the client has forgotten the tag
    private boolean leasing;
    private boolean queued; // for a thread that leases ahead
    private long target;
    private long limit;
    private long ttl; // ns; 0 for no end
    private long issued; // before the head
    private long looked; // how many were issued at the last look,
    private long lookedAt = now();
    private long used = now();
    private long pacedIssued; // when the target was computed
    private long pacedAt = now();
    private MarchException failed; // why leases fail; null while they do not,
    private long failing; // since when,
    private long retryAt; // when to ask again,
    private long pause; // and for how long to wait then
    private long replaceAt; // when to replace segments, or to ask for a worker, again,
    private long again = SECOND; // and for how long to wait then

    Tag(MarchClient client, String name) {
        this.client = client;
        this.name = name;
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
        return id >= 0 ? id : nextSlowly();
    }

    private long nextSlowly() {
        for (;;) {
            warm();
            if (timed) {
                return nextTimed(1).get(0).first();
            }
            long id = head.take(unchecked);
            if (id >= 0) {
                return id;
            }
        }
    }

    /** Returns n IDs, 1 to 1,000,000,000, as runs. */
    public List<Run> nextN(long n) {
        if (n < 1 || n > MOST) {
            throw new MarchException(Kind.INVALID, "count: " + n + "; allowed: 1 to " + MOST);
        }
        List<Run> runs = new ArrayList<>();
        client.lock.lock();
        try {
            do {
                await(n);
                putBack();
            } while (!timed && heldNow() < n); // others took some
            while (n > 0 && !timed) {
                Segment s = segments.removeFirst();
                runs.addAll(s.head(n).runs());
                issued += Math.min(n, s.count());
                if (s.count() > n) {
                    segments.addFirst(s.rest(n));
                }
                n -= Math.min(n, s.count());
            }
            promote();
        } finally {
            client.lock.unlock();
        }
        return n > 0 ? nextTimed(n) : runs;
    }

    /** Returns an ID as a text, by the tag's format, of a room. */
    public Text nextText() {
        Map<String, Object> answer = ask("/next", "{\"count\":\"1\",\"texts\":true}");
        if (!(answer.get("texts") instanceof List<?> texts) || texts.isEmpty()) {
            throw new MarchException(Kind.REFUSED, "tag " + name + ": it has no format, so its IDs have no texts");
        }
        List<Run> runs = runsOf(answer);
        return new Text((String) texts.get(0), runs.isEmpty() ? 0 : runs.get(0).first());
    }

    /** Returns the ID of a text, of a room. */
    public long parseText(String text) {
        String escaped = URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
        return number(ask(":parse?text=" + escaped, null), "id");
    }

    /** Returns the answer of a room. After a temporary error it asks again, for some seconds. */
    private Map<String, Object> ask(String call, String body) {
        long giveUp = now() + PATIENCE;
        for (long pause = SECOND / 50;; pause = Math.min(2 * pause, SECOND / 2)) {
            open();
            try {
                return client.rooms.ask(path + call, body, null).body();
            } catch (MarchException e) {
                long wait = e.kind() == Kind.UNAVAILABLE ? pause : e.retryAfter().toNanos();
                if (!e.temporary() || now() + wait >= giveUp || Thread.currentThread().isInterrupted()) {
                    throw e;
                }
                LockSupport.parkNanos(wait);
            }
        }
    }

    /** Returns when IDs are held. */
    public void warm() {
        client.locked(() -> {
            dropEnded(now());
            if (head.remaining() == 0) {
                await(1);
                promote();
            }
        });
    }

    /** Returns how many IDs are held. */
    public long held() {
        return client.locked(() -> {
            dropEnded(now());
            return heldNow();
        });
    }

    private long heldNow() {
        return head.remaining() + segments.stream().mapToLong(Segment::count).sum();
    }

    private void open() {
        if (client.closed) {
            throw new MarchException(Kind.CLOSED, "the client was closed");
        }
    }

    /** Waits until n IDs are held, or the tag is time-ordered. */
    private void await(long n) {
        long giveUp = now() + PATIENCE;
        for (;;) {
            long at = now();
            used = at;
            open();
            dropEnded(at);
            if (timed ? at < retryAt || System.currentTimeMillis() < window.until() && at < windowEnds
                : heldNow() >= n) {
                return;
            } else if (gone || at < retryAt && (!failed.temporary() || at - failing >= PATIENCE)) {
                throw failed.again();
            } else if (at >= giveUp) {
                throw failed != null ? failed.again()
                    : new MarchException(Kind.UNAVAILABLE, "tag " + name + ": no IDs within 3 s");
            } else if (leasing) {
                client.await(giveUp - at);
            } else if (at < retryAt) {
                client.await(Math.min(giveUp, retryAt) - at);
            } else {
                lease(Math.max(Math.max(n - heldNow(), need(at)), 1));
            }
        }
    }

    /** Makes the front of the segments the head, if that has no IDs. */
    private void promote() {
        if (head.remaining() == 0 && !segments.isEmpty() && !client.closed) {
            issued += head.segment.count();
            Segment s = segments.removeFirst();
            Link next = Link.of(s, Math.max(target / 8, 1));
            if (next.segment.count() < s.count()) {
                segments.addFirst(s.rest(next.segment.count()));
            }
            unchecked = 0; // until the next look: it may end sooner
            head = next;
        }
        leaseAhead(now());
    }

    /** Ends the head, and makes a segment of the IDs that are left. */
    private void putBack() {
        if (head != none) {
            Segment rest = head.close();
            issued += head.segment.count() - rest.count();
            head = none;
            if (rest.count() > 0) {
                segments.addFirst(rest);
            }
        }
    }

    /** Drops segments, at once. */
    void drop(Predicate<Segment> ends) {
        if (head != none && ends.test(head.segment)) {
            putBack();
        }
        segments.removeIf(ends);
    }

    private void dropEnded(long at) {
        drop(s -> s.until() <= at);
    }

    /** Drops the IDs from a limit on. */
    private void limited(long at) {
        if (at > 0 && at != limit) {
            limit = at;
            putBack();
            Deque<Segment> below = new ArrayDeque<>();
            segments.stream().map(s -> s.below(at)).filter(s -> s.count() > 0).forEach(below::add);
            segments = below;
        }
    }

    /** Returns n IDs of a time-ordered tag: of its worker's window, or else of a room. */
    private List<Run> nextTimed(long n) {
        List<Run> runs = new ArrayList<>();
        while (n > 0) {
            long left = n;
            Run run = client.locked(() -> {
                await(0);
                boolean lent = timed && ticks != null && now() < windowEnds;
                return lent ? ticks.take(left, System.currentTimeMillis(), window) : null;
            });
            if (run != null && run.count() > 0) {
                runs.add(run);
                n -= run.count();
                continue;
            } else if (run != null) {
                LockSupport.parkNanos(ticks.left(System.currentTimeMillis()) * 1_000_000); // to the end of the tick
                continue;
            }
            long count = Math.min(n, batch);
            try {
                runs.addAll(runsOf(ask("/next", "{\"count\":\"" + count + "\"}")));
                n -= count;
            } catch (MarchException e) {
                if (e.kind() != Kind.INVALID || count == 1) {
                    throw e;
                }
                batch = count / 2; // more than one worker has in a second
            }
        }
        return runs;
    }

    private static List<Run> runsOf(Map<String, Object> answer) {
        List<Run> runs = new ArrayList<>();
        for (Object run : answer.get("runs") instanceof List<?> list ? list : List.of()) {
            Map<String, Object> fields = object(Map.of("run", run), "run");
            runs.add(new Run(number(fields, "first"), number(fields, "count"), Math.max(number(fields, "stride"), 1)));
        }
        return runs;
    }

    /** Whether a segment must be replaced: it ends soon, or the room gave up a part of its range. */
    private boolean old(Segment s, long at) {
        return s.aging(at, ttl) || client.newest.outdates(s);
    }

    /** Returns how many IDs to lease now. Of a window it is 1. */
    private long need(long at) {
        if (timed) { // after a change of the layout the room may have given up the worker
            return at >= (version < client.newest.version() ? replaceAt : renewAt) ? 1 : 0;
        }
        long held = heldNow();
        boolean aging = head.remaining() > 0 && old(head.segment, at) || segments.stream().anyMatch(s -> old(s, at));
        if (aging && at >= replaceAt) {
            return Math.max(target, Math.min(held, 2 * target));
        }
        return held < target ? target : 0;
    }

    /** Looks after the tag. */
    void tend() {
        long at = now();
        long total = issued + head.taken();
        used = total != looked ? at : used;
        boolean ending = head.segment.until() < at + SECOND; // before the next look, or soon after it
        unchecked = total - looked > (at - lookedAt) / FAST && !ending ? 63 : 0;
        looked = total;
        lookedAt = at;
        dropEnded(at);
        boolean calm = failed == null || at >= retryAt - pause + SECOND / 2; // one of many tags asks seldom
        if (known && calm && (ttl == 0 || at - used < ttl)) { // unused: let it end
            leaseAhead(at);
        }
    }

    /** Has a thread lease ahead, if the tag needs that: an instance may hang. */
    private void leaseAhead(long at) {
        if (!client.closed && !leasing && !queued && at >= retryAt && need(at) > 0) {
            client.leases.execute(this::refill);
            queued = true;
        }
    }

    /** Leases ahead, if that is still needed. */
    private void refill() {
        client.locked(() -> {
            queued = false;
            long at = now();
            if (need(at) > 0 && at >= retryAt && !leasing && !client.closed) {
                lease(need(at));
            }
        });
    }

    /** Sets the target by the rate since it was last set. */
    private void pace(long at) {
        long taken = issued + head.taken() - pacedIssued;
        long took = at - pacedAt;
        if (taken >= target / 8 || took >= 10 * SECOND) { // enough to tell the rate
            double wanted = taken * 1e9 / Math.max(took, 1_000_000) * client.options.reserve * 8 / 7;
            wanted = Math.min(Math.max(wanted, target / 2.0), target * 2.0);
            target = (long) Math.min(Math.max(wanted, client.options.minStep), client.options.maxStep);
            pacedIssued += taken;
            pacedAt = at;
        }
    }

    /** Leases n IDs or more, or a window, or notes why not. The lock is held, but not while a room is asked. */
    private void lease(long n) {
        pace(now());
        long asked = Math.min(Math.max(n, need(now())), MOST);
        String proof = UUID.randomUUID().toString();
        String held = lender == null ? "" : String.format(Locale.ROOT,
            ",\"held\":{\"worker\":\"%d\",\"nonce\":\"%s\"}", window.worker(), nonce);
        String body = String.format(Locale.ROOT,
            "{\"count\":\"%d\",\"window\":{\"nonce\":\"%s\",\"age\":\"%ds\"%s}}", asked, proof,
            (now() - client.began) / SECOND, held);
        leasing = true;
        replaceAt = now() + Math.min(again, Math.max(ttl / 6, SECOND / 10));
        again = Math.min(2 * again, 60 * SECOND);
        try {
            Answer answer;
            client.lock.unlock();
            try {
                answer = client.rooms.ask(path + "/lease", body, lender);
            } finally {
                client.lock.lock();
            }
            if (!client.closed) {
                accept(answer, asked, proof);
                known = true;
                failed = null;
                retryAt = 0;
                pause = 0;
            }
        } catch (MarchException e) {
            fail(e);
        } catch (RuntimeException | Error e) { // an Error would have the keeper ask without a pause
            fail(new MarchException(Kind.INTERNAL, "tag " + name + ": an answer makes no sense", SECOND, 0, false, e));
        } finally {
            leasing = false;
            client.changed.signalAll();
        }
    }

    private void fail(MarchException e) {
        failing = failed == null ? now() : failing;
        failed = e;
        pause = Math.min(Math.max(2 * pause, SECOND / 50), SECOND / 2);
        boolean brief = e.kind() == Kind.UNAVAILABLE && !e.noWindow();
        retryAt = now() + (brief ? (long) (pause * ThreadLocalRandom.current().nextDouble(0.5, 1))
            : Math.max(e.retryAfter().toNanos(), e.noWindow() ? again : 0));
        timed = e.noWindow() || timed && e.kind() != Kind.NOT_FOUND;
        limited(e.limit());
        if (!known && GONE.contains(e.kind())) {
            gone = client.forget(this); // so that names of no tag do not fill the memory
        }
    }

    /** Adds what an answer leases. Its error says why it cannot. */
    private void accept(Answer answer, long asked, String proof) {
        Room from = answer.from();
        if (!from.other && !client.heard(Part.of(object(answer.body(), "serves")))) {
            client.rooms.avoid(from); // it lags behind, but what it leases is valid
        }
        Map<String, Object> time = object(answer.body(), "time");
        timed = !time.isEmpty();
        if (timed) {
            takeWindow(time, from, answer.sent(), proof);
        } else {
            takeSegment(answer, asked);
        }
    }

    private void takeWindow(Map<String, Object> time, Room from, long sent, String proof) {
        Map<String, Object> got = object(time, "window");
        long there = number(got, "nowMs");
        window = new Window(number(got, "worker"), number(got, "fromMs"), number(got, "untilMs"));
        windowEnds = 0;
        lender = from; // the worker is ours, whatever the clock: the next answer renews it
        nonce = proof;
        if (System.currentTimeMillis() - (now() - sent) / 1_000_000 - there > AHEAD) {
            throw new MarchException(Kind.REFUSED,
                "tag " + name + ": the clock is ahead of that of the room at " + from.url);
        }
        ticks = new Ticks(object(time, "tag"), ticks);
        batch = Math.min(BATCH, ticks.perSecond());
        ttl = (window.until() - Math.max(there, window.since())) * 1_000_000;
        windowEnds = sent + (window.until() - there) * 1_000_000;
        renewAt = now() + ttl / 2;
        again = SECOND;
        version = client.newest.version();
    }

    private void takeSegment(Answer answer, long asked) {
        Map<String, Object> body = answer.body();
        long at = now();
        ttl = Ticks.nanos(body.get("ttl"));
        Segment s = Segment.of(object(body, "segment"), asked, ttl > 0 ? answer.sent() + ttl : NEVER);
        limited(number(body, "limit"));
        s = limit > 0 ? s.below(limit) : s;
        if (s.until() <= at) {
            throw new MarchException(Kind.UNAVAILABLE,
                "room at " + answer.from().url + ": its answer took longer than " + body.get("ttl"));
        } else if (s.count() == 0) {
            throw new MarchException(Kind.EXHAUSTED, "tag " + name + ": no ID is left below the limit " + limit);
        }
        if (!old(s, at)) {
            drop(o -> old(o, at));
            again = SECOND;
            replaceAt = 0;
        }
        segments.addLast(s);
    }
}

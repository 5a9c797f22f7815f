package io.github.marchid;

import static io.github.marchid.Rooms.SECOND;
import static io.github.marchid.Rooms.now;

import io.github.marchid.MarchException.Kind;
import io.github.marchid.Segment.Part;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Issues unique IDs of any number of tags in this process, from segments that it leases ahead. All methods are safe
 * for concurrent use.
 *
 * <pre>{@code
 * try (MarchClient ids = new MarchClient(new MarchClient.Options("http://127.0.0.1:7020"))) {
 *     long id = ids.next("order");
 * }
 * }</pre>
 */
public final class MarchClient implements AutoCloseable {
    static final long MOST = 1_000_000_000; // IDs of a lease
    private static final long LOOK = SECOND / 10; // between two looks at the tags in use
    static final int REFILLS = 16; // that are under way at once
    private static final int LEASES = 256;
    private static final Pattern NAME = Pattern.compile("[a-z0-9][a-z0-9._-]{0,62}");

    /** What a client is made with. It is not to be changed afterwards. */
    public static final class Options {
        /** URLs of the instances of one room, http://HOST:PORT or https://HOST:PORT. */
        public List<String> addresses;
        /** URLs of other rooms, which are asked if none of the addresses leases IDs. */
        public List<String> fallback = List.of();
        /** How long the IDs held last at the recent rate. */
        public Duration reserve = Duration.ofSeconds(30);
        /** The least number of IDs of a lease ahead. */
        public long minStep = 1000;
        /** The largest one. */
        public long maxStep = MOST;
        /** How long an instance may take to answer. */
        public Duration timeout = Duration.ofSeconds(2);
        /** A file with the token to give with each call, over TLS or to this machine. It is read for each. */
        public Path tokenFile;
        /** A PEM file with the CAs of the servers, in place of Java's. */
        public Path ca;
        /** TLS with more than CAs, such as a client's own certificate, in place of ca. */
        public SSLContext tls;

        /** The defaults, with the addresses of a room. */
        public Options(String... addresses) {
            this.addresses = List.of(addresses);
        }
    }

    final Options options;
    final Rooms rooms;
    final long began = now();
    final Map<String, Tag> tags = new ConcurrentHashMap<>();
    final Set<Tag> used = ConcurrentHashMap.newKeySet(); // those to look after
    final ThreadPoolExecutor refills = pool(REFILLS);
    final ThreadPoolExecutor leases = pool(LEASES); // that callers wait for
    volatile Part newest = new Part(0, 0, 0, 0); // the own room's part of the newest layout that an answer named

    /** A client. Its errors are INVALID. */
    public MarchClient(Options options) {
        this.options = options;
        if (options.minStep < 1 || options.minStep > options.maxStep || options.maxStep > MOST
            || options.addresses == null || options.fallback == null
            || !within(Duration.ofSeconds(1), options.reserve) || !within(Duration.ofNanos(1), options.timeout)) {
            throw new MarchException(Kind.INVALID, "allowed: addresses, steps of 1 to " + MOST
                + ", a reserve of 1 s to a day, a timeout above 0 s", null);
        }
        rooms = new Rooms(options, options.tls == null && options.ca != null ? trusting(options.ca) : options.tls);
        thread(this::look).start();
    }

    private static boolean within(Duration least, Duration d) {
        return d != null && d.compareTo(least) >= 0 && d.compareTo(Duration.ofDays(1)) <= 0;
    }

    private static ThreadPoolExecutor pool(int threads) {
        ThreadPoolExecutor pool = new ThreadPoolExecutor(threads, threads, 1, TimeUnit.MINUTES,
            new LinkedBlockingQueue<>(), MarchClient::thread);
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    private static SSLContext trusting(Path ca) {
        try (InputStream pem = Files.newInputStream(ca)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                store.setCertificateEntry("ca" + store.size(), c);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException e) {
            throw new MarchException(Kind.INVALID, "ca: " + e, e);
        }
    }

    private static Thread thread(Runnable work) {
        Thread thread = new Thread(null, work, "march", 0, false);
        thread.setDaemon(true);
        return thread;
    }

    /** Returns an ID of a tag. It waits only while none is held, for some seconds at most. */
    public long next(String tag) {
        return tag(tag).next();
    }

    /** Returns a handle to a tag. It asks no room. */
    public Tag tag(String name) {
        Tag known = tags.get(name);
        if (known == null && !NAME.matcher(name).matches()) {
            throw new MarchException(Kind.INVALID, "tag: \"" + name.substring(0, Math.min(name.length(), 64))
                + "\"; allowed: " + NAME, null);
        } else if (known == null) {
            known = tags.computeIfAbsent(name, n -> new Tag(this, n));
            used.add(known);
        }
        return known;
    }

    /** Drops all IDs that are held. Calls that wait end, those that ask a room as soon as it has answered. */
    @Override
    public void close() {
        rooms.close();
        used.forEach(Tag::close);
        refills.shutdown();
        leases.shutdown();
    }

    /** Looks after the tags in use. */
    private void look() {
        for (; !rooms.closed(); LockSupport.parkNanos(LOOK)) {
            try {
                used.forEach(Tag::tend);
            } catch (RuntimeException | Error e) {
                continue; // no memory, say: callers lease what they need
            }
        }
    }

    /** Notes the own room's part of a layout. */
    synchronized void heard(Part part) {
        newest = part.version() > newest.version() ? part : newest;
    }
}

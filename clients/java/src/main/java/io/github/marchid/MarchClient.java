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
 * try (MarchClient ids = MarchClient.builder("http://127.0.0.1:7020").build()) {
 *     long id = ids.next("order");
 * }
 * }</pre>
 */
public final class MarchClient implements AutoCloseable {
    static final long MOST = 1_000_000_000; // IDs of a lease
    private static final long LOOK = SECOND / 10; // between two looks at the tags in use
    static final int REFILLS = 16; // that are under way at once
    private static final Pattern NAME = Pattern.compile("[a-z0-9][a-z0-9._-]{0,62}");

    final Builder options;
    final Rooms rooms;
    final long began = now();
    final Map<String, Tag> tags = new ConcurrentHashMap<>();
    final Set<Tag> used = ConcurrentHashMap.newKeySet(); // those to look after
    final ThreadPoolExecutor refills = new ThreadPoolExecutor(REFILLS, REFILLS, 60, TimeUnit.SECONDS,
        new LinkedBlockingQueue<>(), MarchClient::thread);
    volatile Part newest = new Part(0, 0, 0, 0); // the own room's part of the newest layout that an answer named

    private MarchClient(Builder options, SSLContext tls) {
        this.options = options;
        rooms = new Rooms(options.addresses, options.fallback, options.timeout, options.tokenFile, tls);
        refills.allowCoreThreadTimeOut(true);
        thread(this::look).start();
    }

    private static Thread thread(Runnable work) {
        Thread thread = new Thread(work, "march");
        thread.setDaemon(true);
        return thread;
    }

    /** Returns a builder of a client of one room. Addresses are URLs of the room's instances, http://HOST:PORT. */
    public static Builder builder(String... addresses) {
        return new Builder(List.of(addresses));
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
        rooms.closed = true;
        used.forEach(Tag::close);
        refills.shutdown();
    }

    /** Looks after the tags in use. */
    private void look() {
        for (; !rooms.closed; LockSupport.parkNanos(LOOK)) {
            outlast(() -> {
                Rooms.renew();
                used.forEach(tag -> outlast(tag::tend));
            });
        }
    }

    private static void outlast(Runnable work) {
        try {
            work.run();
        } catch (RuntimeException | Error e) {
            return; // no memory or thread, say: callers lease what they need
        }
    }

    /** Notes the own room's part of a layout. */
    synchronized void heard(Part part) {
        newest = part.version() > newest.version() ? part : newest;
    }

    /** The options of a client. */
    public static final class Builder {
        private final List<String> addresses;
        private List<String> fallback = List.of();
        private Duration timeout = Duration.ofSeconds(2);
        private Path tokenFile;
        private Path ca;
        private SSLContext tls;
        double reserve = 30; // s
        long minStep = 1000;
        long maxStep = MOST;

        private Builder(List<String> addresses) {
            this.addresses = addresses;
        }

        /** Rooms that are asked if none of the addresses leases IDs. Default none. */
        public Builder fallback(String... addresses) {
            fallback = List.of(addresses);
            return this;
        }

        /** How long the IDs held last at the recent rate. Default 30 s. */
        public Builder reserve(Duration reserve) {
            this.reserve = reserve.toNanos() / 1e9;
            return this;
        }

        /** The least and the largest number of IDs of a lease ahead. Default 1,000 and 1,000,000,000. */
        public Builder steps(long least, long most) {
            minStep = least;
            maxStep = most;
            return this;
        }

        /** How long an instance may take to answer. Default 2 s. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** A file with the token to give with each call, over TLS or to this machine. It is read for each. */
        public Builder tokenFile(Path file) {
            tokenFile = file;
            return this;
        }

        /** A PEM file with the CAs of the servers. Default: Java's. */
        public Builder ca(Path file) {
            ca = file;
            return this;
        }

        /** TLS with more than CAs, such as a client's own certificate. It takes the place of ca. */
        public Builder sslContext(SSLContext context) {
            tls = context;
            return this;
        }

        /** Returns the client. Its errors are INVALID. */
        public MarchClient build() {
            if (minStep < 1 || minStep > maxStep || maxStep > MOST || reserve < 1 || timeout.toNanos() <= 0) {
                throw new MarchException(Kind.INVALID, "allowed: steps of 1 to " + MOST
                    + ", a reserve of 1 s or more, a timeout above 0 s", null);
            }
            try {
                return new MarchClient(this, tls == null && ca != null ? trusting(ca) : tls);
            } catch (IOException | GeneralSecurityException e) {
                throw new MarchException(Kind.INVALID, "ca: " + e, e);
            }
        }

        private static SSLContext trusting(Path ca) throws IOException, GeneralSecurityException {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            try (InputStream pem = Files.newInputStream(ca)) {
                for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                    store.setCertificateEntry("ca" + store.size(), c);
                }
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        }
    }
}

package io.github.marchid;

import io.github.marchid.MarchException.Kind;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;

/** The rooms that a client may ask. */
final class Rooms {
    static final long SECOND = 1_000_000_000;
    static final long PATIENCE = 3 * SECOND; // for which callers wait for rooms; later ones get the error
    static final long AVOID = 5 * SECOND; // for which an instance that failed is asked only after all others
    private static final int TRIES = 3; // how many hanging instances a call waits for
    private static final long MOST_WAIT = 30; // s that an answer has a client wait
    private static final Pattern ADDRESS = Pattern.compile("https?://[^/?#@]+/?");
    private static final Pattern HERE = Pattern.compile("localhost|\\[::1]|127(\\.(25[0-5]|(2[0-4]|1?\\d)?\\d)){3}");

    /** Reads the answer of an address to a request that was sent then. */
    interface Reader<T> {
        T read(Map<String, String> answer, String url, long sent);
    }

    final Map<String, Long> failed = Collections.synchronizedMap(new LinkedHashMap<>()); // when each address did last,
    final Map<String, Long> lagging = new ConcurrentHashMap<>(); // and when one lagged: counts until it is tried again
    final List<String> fallback;
    final long longest; // that a lease may take
    private volatile HttpClient http; // null when the client is closed
    private final long timeout; // ns
    private final Path tokenFile;

    Rooms(MarchClient.Options options, SSLContext tls) {
        List<String> all = new ArrayList<>(options.addresses);
        Collections.shuffle(all); // so that clients spread over the instances of a room
        all.addAll(options.fallback);
        if (options.addresses.isEmpty() || !all.stream().allMatch(Rooms::fits)) {
            throw new MarchException(Kind.INVALID, "addresses: " + all + "; allowed: 1 or more http[s]://HOST:PORT",
                null);
        }
        all.forEach(url -> failed.put(url, -AVOID));
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(options.timeout).proxy(HttpClient.Builder.NO_PROXY);
        http = (tls == null ? builder : builder.sslContext(tls)).build();
        fallback = List.copyOf(options.fallback);
        tokenFile = options.tokenFile;
        timeout = options.timeout.toNanos();
        longest = PATIENCE + (TRIES + 1) * timeout;
    }

    boolean closed() {
        return http == null;
    }

    void close() {
        http = null;
    }

    private static boolean fits(String address) {
        try { // the JDK has no host for one with an underscore
            URI uri = URI.create(address);
            return ADDRESS.matcher(address).matches() && uri.getHost() != null && uri.getPort() < 65_536;
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    /**
     * Returns what is read of the first answer of a room. After a temporary error of all it asks again, as long as its
     * patience lasts. A null body makes a GET.
     */
    <T> T ask(String path, String body, long patience, Reader<T> reader) {
        long giveUp = now() + patience;
        for (long pause = SECOND / 50;; pause = Math.min(2 * pause, SECOND / 2)) {
            long began = now();
            // Those that failed just now are asked last, other rooms after the own, and what lags after others of a room.
            Map<String, Long> at = Map.copyOf(failed);
            Map<String, Long> lagged = Map.copyOf(lagging);
            Comparator<String> rank = Comparator.comparing((String url) -> began < at.get(url) + AVOID)
                .thenComparing(fallback::contains)
                .thenComparing(url -> began < lagged.getOrDefault(url, -3 * AVOID) + 3 * AVOID).thenComparing(at::get);
            List<MarchException> failures = new ArrayList<>();
            for (String url : failed.keySet().stream().sorted(rank).toList()) {
                try {
                    return call(url, path, body, reader);
                } catch (MarchException e) {
                    if (Thread.currentThread().isInterrupted()) { // which is no failure of a room
                        throw e;
                    } else if (!e.noWindow && (e.temporary() || e.kind() == Kind.INTERNAL)) {
                        failed.put(url, now());
                    }
                    if (!e.elsewhere()) {
                        throw e;
                    }
                    failures.add(e);
                }
                if (now() - began >= TRIES * timeout) {
                    break;
                }
            }
            MarchException e = together(failures);
            long wait = e.kind() == Kind.UNAVAILABLE ? (long) (pause * ThreadLocalRandom.current().nextDouble(0.5, 1))
                : e.retryAfter;
            if (!e.temporary() || e.noWindow || now() + wait >= giveUp) {
                throw e;
            }
            sleep(wait);
        }
    }

    /** The error of a call after the failures of several instances. */
    static MarchException together(List<MarchException> failures) {
        MarchException all = new MarchException(Collections.min(failures, Comparator.comparing(MarchException::kind)),
            failures.stream().map(Throwable::getMessage).collect(Collectors.joining("; ")));
        all.noWindow = failures.stream().anyMatch(e -> e.noWindow);
        return all;
    }

    private <T> T call(String url, String path, String body, Reader<T> reader) {
        String name = "room at " + url;
        URI uri = URI.create(url.replaceAll("/$", "") + path);
        HttpRequest.Builder request = HttpRequest.newBuilder(uri).header("Content-Type", "application/json");
        HttpClient http = this.http;
        if (http == null) {
            throw new MarchException(Kind.CLOSED, "the client was closed", null);
        } else if (tokenFile != null && !url.startsWith("https:") && !HERE.matcher(uri.getHost()).matches()) {
            throw new MarchException(Kind.UNAUTHENTICATED, name + ": no TLS, so the token is not sent", null);
        } else if (tokenFile != null) {
            request.header("Authorization", "Bearer " + token());
        }
        if (body != null) {
            request.POST(BodyPublishers.ofString(body));
        }
        long sent = now();
        CompletableFuture<HttpResponse<String>> coming = http.sendAsync(request.build(), BodyHandlers.ofString());
        try { // a request's own timeout would end at the headers (JDK-8258397)
            HttpResponse<String> answer = coming.get(timeout, TimeUnit.NANOSECONDS);
            if (answer.statusCode() != 200) {
                String after = answer.headers().firstValue("Retry-After").orElse("");
                throw error(answer.statusCode(), answer.body(), after, name);
            }
            return reader.read(Json.parse(answer.body()), url, sent);
        } catch (MarchException e) {
            throw e;
        } catch (ExecutionException | TimeoutException e) {
            throw new MarchException(Kind.UNAVAILABLE, name + ": " + e, e);
        } catch (InterruptedException e) {
            throw interrupted(e);
        } catch (RuntimeException | StackOverflowError e) {
            throw new MarchException(Kind.INTERNAL, name + ": its answer makes no sense", e);
        } finally {
            coming.cancel(true);
        }
    }

    private String token() {
        try {
            String token = Files.readString(tokenFile).strip();
            if (token.matches("[!-~]+")) { // the JDK's error would have its text
                return token;
            }
        } catch (IOException e) {
            throw new MarchException(Kind.UNAUTHENTICATED, tokenFile + ": " + e, e);
        }
        throw new MarchException(Kind.UNAUTHENTICATED, tokenFile + ": no token of one word", null);
    }

    /** The error of an answer that is no success. */
    static MarchException error(int status, String body, String retryAfter, String name) {
        Map<String, String> answer = Map.of();
        long limit = 0;
        try {
            answer = Json.parse(body);
            limit = Json.number(answer, "metadata.limit");
        } catch (IllegalArgumentException | StackOverflowError e) {
            // it is not March's
        }
        String message = answer.getOrDefault("message", "");
        MarchException e = new MarchException(Kind.of(answer.get("reason"), status),
            name + ": " + (message.isEmpty() ? "HTTP status " + status : message), null);
        long after = retryAfter.matches("\\d{1,9}") ? Math.max(1, Long.parseLong(retryAfter)) : 1;
        e.retryAfter = Math.min(after, MOST_WAIT) * SECOND;
        e.limit = limit;
        e.noWindow = "none".equals(answer.get("metadata.window"));
        return e;
    }

    static void sleep(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException e) {
            throw interrupted(e);
        }
    }

    static MarchException interrupted(InterruptedException e) {
        Thread.currentThread().interrupt();
        return new MarchException(Kind.UNAVAILABLE, "interrupted", e);
    }

    /** Both clocks when they were last noted, the second in ms, and for how long the machine was suspended before. */
    private record Clocks(long steady, long wall, long suspended) {}

    private static final long ORIGIN = System.nanoTime();
    private static final AtomicReference<Clocks> NOTED =
        new AtomicReference<>(new Clocks(ORIGIN, System.currentTimeMillis(), 0));

    /**
     * The client's clock, in ns. It never goes back. The time of a suspended machine is the wall clock's, where that
     * went on by a second more than the other since both were noted, a tenth of a second ago at most but for that.
     */
    static long now() {
        Clocks then = NOTED.get();
        long steady = System.nanoTime();
        long wall = System.currentTimeMillis();
        long more = (wall - then.wall) * 1_000_000 - (steady - then.steady);
        long suspended = then.suspended + (more > SECOND ? more : 0);
        if (Math.abs(wall - then.wall) > 100 && !NOTED.compareAndSet(then, new Clocks(steady, wall, suspended))) {
            return now();
        }
        return steady - ORIGIN + suspended;
    }
}

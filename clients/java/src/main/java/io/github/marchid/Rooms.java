package io.github.marchid;

import io.github.marchid.MarchException.Kind;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Function;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;

/** The rooms that a client may ask. */
final class Rooms {
    static final long SECOND = 1_000_000_000;
    static final long PATIENCE = 3 * SECOND; // for which callers wait for rooms; later ones get the error
    private static final long AVOID = 5 * SECOND; // for which an instance that failed is asked only after all others
    private static final int TRIES = 3; // how many hanging instances a call waits for
    private static final long MOST_WAIT = 30; // s that an answer has a client wait
    private static final Pattern ADDRESS = Pattern.compile("https?://([^\\]\\[/:@]+|\\[[^\\]/]+])(:\\d+)?/?");
    private static final Pattern SAFE =
        Pattern.compile("https:.*|http://(localhost|\\[::1]|127(\\.(25[0-5]|(2[0-4]|1?\\d)?\\d)){3})([:/].*)?");

    /** An answer, the address that gave it, and when the request was sent. */
    record Answer<T>(T body, String url, long sent) {}

    final Map<String, Long> failed = Collections.synchronizedMap(new LinkedHashMap<>()); // when each address did last
    final List<String> fallback;
    final long longest; // that a lease may take
    volatile boolean closed;
    private final HttpClient http;
    private final Duration timeout;
    private final Path tokenFile;

    Rooms(List<String> addresses, List<String> fallback, Duration timeout, Path tokenFile, SSLContext tls) {
        List<String> all = new ArrayList<>(addresses);
        Collections.shuffle(all); // so that clients spread over the instances of a room
        all.addAll(fallback);
        if (addresses.isEmpty() || !all.stream().allMatch(Rooms::fits)) {
            throw new MarchException(Kind.INVALID, "addresses: " + all + "; allowed: 1 or more http[s]://HOST:PORT",
                null);
        }
        all.forEach(url -> failed.put(url, -AVOID));
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(timeout).proxy(HttpClient.Builder.NO_PROXY);
        http = (tls == null ? builder : builder.sslContext(tls)).build();
        this.fallback = fallback;
        this.timeout = timeout;
        longest = PATIENCE + (TRIES + 1) * timeout.toNanos();
        this.tokenFile = tokenFile;
    }

    /**
     * Returns what is read of the first answer of a room. After a temporary error of all it asks again, as long as its
     * patience lasts. A null body makes a GET.
     */
    <T> Answer<T> ask(String path, String body, long patience, Function<Map<String, String>, T> read) {
        long giveUp = now() + patience;
        for (long pause = SECOND / 50;; pause = Math.min(2 * pause, SECOND / 2)) {
            long began = now();
            // Those that failed just now are asked last, and other rooms after the own.
            Map<String, Long> at = Map.copyOf(failed);
            Comparator<String> rank = Comparator.comparing((String url) -> began < at.get(url) + AVOID)
                .thenComparing(fallback::contains).thenComparing(at::get);
            List<MarchException> failures = new ArrayList<>();
            for (String url : failed.keySet().stream().sorted(rank).toList()) {
                long sent = now();
                try {
                    return new Answer<>(call(url, path, body, read), url, sent);
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
                if (now() - began >= TRIES * timeout.toNanos()) {
                    break;
                }
            }
            MarchException e = together(failures);
            long wait = e.kind() == Kind.UNAVAILABLE ? (long) (pause * ThreadLocalRandom.current().nextDouble(0.5, 1))
                : e.retryAfter;
            if (!e.temporary() || e.noWindow || now() + wait >= giveUp) {
                throw e;
            }
            pause(wait);
        }
    }

    /** The error of a call after the failures of several instances. */
    static MarchException together(List<MarchException> failures) {
        MarchException first = Collections.min(failures, Comparator.comparing(MarchException::kind));
        MarchException all =
            first.again(failures.stream().map(Throwable::getMessage).collect(Collectors.joining("; ")));
        all.noWindow = failures.stream().anyMatch(e -> e.noWindow);
        return all;
    }

    private static boolean fits(String address) {
        try { // the JDK has no host for one with an underscore
            return ADDRESS.matcher(address).matches() && URI.create(address).getHost() != null
                && URI.create(address).getPort() < 65_536;
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private <T> T call(String url, String path, String body, Function<Map<String, String>, T> read) {
        String name = "room at " + url;
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url.replaceAll("/$", "") + path))
                .header("Content-Type", "application/json");
            if (closed) {
                throw new MarchException(Kind.CLOSED, "the client was closed", null);
            } else if (tokenFile != null && !SAFE.matcher(url).matches()) {
                throw new MarchException(Kind.UNAUTHENTICATED, name + ": no TLS, so the token is not sent", null);
            } else if (tokenFile != null) {
                request.header("Authorization", "Bearer " + token());
            }
            if (body != null) {
                request.POST(BodyPublishers.ofString(body));
            }
            HttpResponse<String> answer = whole(http.sendAsync(request.build(), BodyHandlers.ofString()));
            if (answer.statusCode() != 200) {
                String after = answer.headers().firstValue("Retry-After").orElse("");
                throw error(answer.statusCode(), answer.body(), after, name);
            }
            return read.apply(Json.parse(answer.body()));
        } catch (ExecutionException | TimeoutException e) {
            throw new MarchException(Kind.UNAVAILABLE, name + ": " + e, e);
        } catch (InterruptedException e) {
            throw interrupted(e);
        } catch (IllegalArgumentException | ArithmeticException | NullPointerException e) {
            throw new MarchException(Kind.INTERNAL, name + ": its answer makes no sense", e);
        }
    }

    static void pause(long nanos) {
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

    /** Waits for a whole answer: a request's own timeout ends at the headers (JDK-8258397). */
    private <T> T whole(CompletableFuture<T> answer) throws ExecutionException, InterruptedException, TimeoutException {
        try {
            return answer.get(timeout.toNanos(), TimeUnit.NANOSECONDS);
        } finally {
            answer.cancel(true);
        }
    }

    /** The error of an answer that is no success. */
    static MarchException error(int status, String body, String retryAfter, String name) {
        Map<String, String> answer = Map.of();
        long limit = 0;
        try {
            answer = Json.parse(body);
            limit = Json.number(answer, "metadata.limit");
        } catch (IllegalArgumentException e) {
            // it is not March's
        }
        long after = retryAfter.matches("\\d{1,9}") ? Math.max(1, Long.parseLong(retryAfter)) : 1;
        String message = answer.getOrDefault("message", "");
        MarchException e = new MarchException(Kind.of(answer.get("reason"), status),
            name + ": " + (message.isEmpty() ? "HTTP status " + status : message), null);
        e.retryAfter = Math.min(after, MOST_WAIT) * SECOND;
        e.limit = limit;
        e.noWindow = "none".equals(answer.get("metadata.window"));
        return e;
    }

    /** Two clocks, and what to add to the first: how long the machine was suspended, less the origin. All in ns. */
    private record Clocks(long steady, long wall, long more) {}

    private static volatile Clocks last = new Clocks(System.nanoTime(), wall(), -System.nanoTime());

    private static long wall() {
        return System.currentTimeMillis() * 1_000_000;
    }

    /**
     * The client's clock, in ns. It never goes back. The time of a suspended machine is the wall clock's, where that
     * has gone on by a second more than the other.
     */
    static long now() {
        return now(SECOND);
    }

    /** Notes both clocks, so that the wall clock's changes of less than a second do not add up. */
    static void renew() {
        now(0);
    }

    private static long now(long least) {
        Clocks then = last;
        long steady = System.nanoTime();
        long wall = wall();
        long more = wall - then.wall - (steady - then.steady);
        if (Math.abs(more) < least) {
            return steady + then.more;
        }
        synchronized (Rooms.class) {
            last = last == then ? new Clocks(steady, wall, then.more + (more < SECOND ? 0 : more)) : last;
        }
        return now();
    }
}

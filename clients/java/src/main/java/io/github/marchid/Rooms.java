package io.github.marchid;

import static io.github.marchid.MarchException.ELSEWHERE;

import io.github.marchid.MarchException.Kind;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;

/** The rooms that a client may ask. */
final class Rooms {
    static final long SECOND = 1_000_000_000;
    private static final long AVOID = 5 * SECOND; // for which an instance that failed is asked only after all others
    private static final int TRIES = 3; // how many hanging instances a call waits for
    private static final long MOST_WAIT = 30; // s that an answer has a client wait

    /** The address of an instance, or of several instances of one room. */
    static final class Room {
        final String url;
        final boolean other; // than the client's own room
        final boolean mayHaveToken;
        volatile long avoidUntil;

        Room(String url, boolean other) {
            URI uri;
            try {
                uri = URI.create(url);
            } catch (IllegalArgumentException e) {
                uri = URI.create("");
            }
            boolean secure = "https".equals(uri.getScheme());
            if (uri.getHost() == null || !secure && !"http".equals(uri.getScheme())) {
                throw new MarchException(Kind.INVALID,
                    "address: " + url + "; allowed: http://HOST:PORT, https://HOST:PORT");
            }
            this.url = url.replaceAll("/+$", "");
            this.other = other;
            String host = uri.getHost();
            mayHaveToken = secure || host.equals("localhost") || host.equals("[::1]") || host.startsWith("127.");
        }
    }

    /** An answer, the room that gave it, and when the request was sent. */
    record Answer(Map<String, Object> body, Room from, long sent) {}

    private final List<Room> rooms = new ArrayList<>();
    private final HttpClient http;
    private final Duration timeout;
    private final Path tokenFile;
    private volatile Room answers; // the one that answered last

    Rooms(List<String> addresses, List<String> fallback, Duration timeout, Path tokenFile, SSLContext tls) {
        if (addresses.isEmpty()) {
            throw new MarchException(Kind.INVALID, "addresses: none; allowed: 1 or more");
        }
        List<String> own = new ArrayList<>(addresses);
        Collections.shuffle(own); // so that clients spread over the instances of a room
        own.forEach(a -> rooms.add(new Room(a, false)));
        fallback.forEach(a -> rooms.add(new Room(a, true)));
        HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(timeout).proxy(HttpClient.Builder.NO_PROXY);
        this.http = (tls == null ? builder : builder.sslContext(tls)).build();
        this.timeout = timeout;
        this.tokenFile = tokenFile;
    }

    /** Returns the answer of the first room that gives one. A null body makes a GET. */
    Answer ask(String path, String body, Room prefer) {
        long began = now();
        Comparator<Room> rank = Comparator.comparingInt(r -> r == prefer ? -1 : began < r.avoidUntil ? 3
            : r.other ? 2 : r == answers ? 0 : 1);
        List<MarchException> failures = new ArrayList<>();
        for (Room room : rooms.stream().sorted(rank).toList()) {
            long sent = now();
            try {
                Map<String, Object> answer = call(room, path, body);
                answers = room;
                return new Answer(answer, room, sent);
            } catch (MarchException e) {
                if (!e.elsewhere()) {
                    throw e;
                } else if (!e.noWindow()) {
                    avoid(room);
                }
                failures.add(e);
            }
            if (now() - began >= TRIES * timeout.toNanos()) {
                break;
            }
        }
        throw together(failures);
    }

    /** The error of a call after the failures of several instances. */
    static MarchException together(List<MarchException> failures) {
        MarchException first = Collections.min(failures, Comparator.comparingInt(
            e -> ELSEWHERE.contains(e.kind()) ? ELSEWHERE.indexOf(e.kind()) : ELSEWHERE.size()));
        if (failures.size() == 1) {
            return first;
        }
        return new MarchException(first.kind(),
            failures.stream().map(Throwable::getMessage).collect(Collectors.joining("; ")),
            failures.stream().mapToLong(e -> e.retryAfter().toNanos()).max().orElse(SECOND), 0,
            failures.stream().allMatch(MarchException::noWindow), first);
    }

    /** Asks a room only after all others, for a while. */
    void avoid(Room room) {
        room.avoidUntil = now() + AVOID;
    }

    private Map<String, Object> call(Room room, String path, String body) {
        String name = "room at " + room.url;
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(room.url + path))
                .header("Content-Type", "application/json");
            if (tokenFile != null && !room.mayHaveToken) {
                throw new MarchException(Kind.UNAUTHENTICATED, name + ": no TLS, so the token is not sent");
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
            return Json.object(Map.of("answer", Json.parse(answer.body())), "answer");
        } catch (ExecutionException | TimeoutException e) {
            throw new MarchException(Kind.UNAVAILABLE, name + ": " + e, SECOND, 0, false, e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new MarchException(Kind.UNAVAILABLE, "interrupted", SECOND, 0, false, e);
        } catch (IllegalArgumentException | NullPointerException e) {
            throw new MarchException(Kind.INTERNAL, name + ": its answer makes no sense", SECOND, 0, false, e);
        }
    }

    private String token() {
        try {
            String token = Files.readString(tokenFile).strip();
            if (token.matches("[!-~]+")) { // the JDK's error would have its text
                return token;
            }
        } catch (IOException e) {
            throw new MarchException(Kind.UNAUTHENTICATED, tokenFile + ": " + e, SECOND, 0, false, e);
        }
        throw new MarchException(Kind.UNAUTHENTICATED, tokenFile + ": no token of one word");
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
        Map<String, Object> answer = Map.of();
        try {
            answer = Json.object(Collections.singletonMap("answer", Json.parse(body)), "answer");
        } catch (IllegalArgumentException e) {
            // it is not March's
        }
        Map<String, Object> metadata = Json.object(answer, "metadata");
        long limit = 0;
        try {
            limit = Json.number(metadata, "limit");
        } catch (NumberFormatException e) {
            // it is not March's
        }
        long after = retryAfter.matches("\\d{1,9}") ? Math.max(1, Long.parseLong(retryAfter)) : 1;
        Object message = answer.get("message");
        return new MarchException(Kind.of(answer.get("reason"), status),
            name + ": " + (message == null ? "HTTP status " + status : message), Math.min(after, MOST_WAIT) * SECOND,
            limit, "none".equals(metadata.get("window")), null);
    }

    private static final long ORIGIN = System.nanoTime();
    private static final long WALL = System.currentTimeMillis();
    private static final AtomicLong SKEW = new AtomicLong();

    /** The client's clock, in ns. It never goes back, and goes on while the machine is suspended. */
    static long now() {
        long at = System.nanoTime() - ORIGIN;
        long skew = (System.currentTimeMillis() - WALL) * 1_000_000 - at;
        long most = SKEW.get();
        return at + (skew > most ? SKEW.accumulateAndGet(skew, Math::max) : most);
    }
}

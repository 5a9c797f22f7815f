package io.github.marchid;

import java.time.Duration;
import java.util.stream.Stream;

/** An error of March. Its kind says what a caller can do about it. */
public final class MarchException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** What a caller can do about an error. */
    public enum Kind {
        // Another instance may succeed. Of the failures of several the first of these is the call's.
        /** No room has IDs now, and none are held: try again. */ UNAVAILABLE,
        /** A limit of the server is reached: try again. */ TOO_MANY,
        /** Leasing is halted: try again. */ WENT_BACK,
        /** The room has no range: try again. */ NO_RANGE,
        // Every instance would answer the same.
        /** A defect. */ INTERNAL,
        /** The request can never succeed as it is. */ INVALID,
        /** There is no such tag. */ NOT_FOUND,
        /** The tag is at its limit. */ EXHAUSTED,
        /** An operator must act first. */ REFUSED,
        /** The caller lacks the right. */ DENIED,
        /** No valid token or certificate. */ UNAUTHENTICATED,
        /** The client was closed. */ CLOSED;

        private boolean temporary() {
            return compareTo(NO_RANGE) <= 0;
        }

        static Kind of(String reason, int status) {
            Kind kind = switch (status) { // a proxy's error, or HTTP's own
                case 400 -> INVALID;
                case 401 -> UNAUTHENTICATED;
                case 403 -> DENIED;
                case 429 -> TOO_MANY;
                case 408, 499, 502, 503, 504 -> UNAVAILABLE;
                default -> INTERNAL;
            };
            return Stream.of(values()).filter(k -> k != CLOSED && k.name().equalsIgnoreCase(reason)).findFirst()
                .orElse(reason == null || reason.isEmpty() || kind.temporary() ? kind : INTERNAL);
        }
    }

    private final Kind kind;
    long retryAfter = Rooms.SECOND; // ns
    long limit;
    boolean noWindow; // no worker is free for a time-ordered tag: rooms still issue its IDs

    MarchException(Kind kind, String message, Throwable cause) {
        super(message, cause);
        this.kind = kind;
    }

    /** Another caller's error, with a message and the stack of this one. */
    MarchException(MarchException of, String message) {
        this(of.kind, message, of);
        retryAfter = of.retryAfter;
        limit = of.limit;
        noWindow = of.noWindow;
    }

    /** The kind. */
    public Kind kind() {
        return kind;
    }

    /** Whether another try may succeed: no room has IDs, or may give any, at the moment. */
    public boolean temporary() {
        return kind.temporary();
    }

    /** How long to wait before another try. */
    public Duration retryAfter() {
        return Duration.ofNanos(retryAfter);
    }

    /** The limit of an exhausted tag; 0 where it is not known. */
    public long limit() {
        return limit;
    }

    boolean elsewhere() {
        return noWindow || temporary();
    }
}

"""Calls of rooms: which instance to ask, and what its errors mean."""

from __future__ import annotations

import enum
import http.client
import json
import random
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

AVOID = 5.0  # seconds for which an instance that failed is asked only after all others
TRIES = 3  # how many hanging instances a call waits for


class Kind(enum.Enum):
    """What a caller can do about an error."""

    INTERNAL = "internal"  # a defect
    INVALID = "invalid"  # the request can never succeed as it is
    NOT_FOUND = "not_found"  # there is no such tag
    EXHAUSTED = "exhausted"  # the tag is at its limit
    REFUSED = "refused"  # an operator must act first
    DENIED = "denied"  # the caller lacks the right
    UNAUTHENTICATED = "unauthenticated"  # no valid token or certificate
    CLOSED = "closed"  # the client was closed
    # Another instance may succeed. Of the failures of several the first of these is the call's.
    UNAVAILABLE = "unavailable"  # no room has IDs now, and none are held: try again
    TOO_MANY = "too_many"  # a limit of the server is reached: try again
    WENT_BACK = "went_back"  # leasing is halted: try again
    NO_RANGE = "no_range"  # the room has no range: try again


ELSEWHERE = (Kind.UNAVAILABLE, Kind.TOO_MANY, Kind.WENT_BACK, Kind.NO_RANGE)
# What a status means without March's reason: it is a proxy's, or HTTP's own.
STATUSES = {400: Kind.INVALID, 401: Kind.UNAUTHENTICATED, 403: Kind.DENIED, 429: Kind.TOO_MANY,
            **dict.fromkeys((408, 499, 502, 503, 504), Kind.UNAVAILABLE)}


class MarchError(Exception):
    """An error of March. retry_after is how many seconds to wait before another try."""

    def __init__(self, kind: Kind, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind, retry_after
        self.limit = 0  # of an exhausted tag, where it is known
        self.no_window = False  # no worker is free for a time-ordered tag: rooms still issue its IDs

    @property
    def temporary(self) -> bool:
        """Whether another try may succeed: no room has IDs, or may give any, at the moment."""
        return self.kind in ELSEWHERE

    def elsewhere(self) -> bool:
        """Whether another instance may succeed."""
        return self.no_window or self.temporary


def error_of(status: int, body: bytes, retry_after: Optional[str] = None, room: str = "room") -> MarchError:
    """The error of an answer that is no success."""
    try:
        answer = dict(json.loads(body))
    except (ValueError, TypeError):
        answer = {}
    reason, metadata = answer.get("reason"), answer.get("metadata") or {}
    kind = {k.value: k for k in Kind}.get(reason) if reason else STATUSES.get(status)
    error = MarchError(kind or Kind.INTERNAL, f"{room}: {answer.get('message') or f'HTTP status {status}'}",
                       max(1.0, float(retry_after)) if (retry_after or "").isdigit() else 1.0)
    error.limit, error.no_window = int(metadata.get("limit", 0)), metadata.get("window") == "none"
    return error


class Room:
    """The address of an instance, or of several instances of one room."""

    def __init__(self, url: str, other: bool) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MarchError(Kind.INVALID, f"address: {url!r}; allowed: http://HOST:PORT, https://HOST:PORT")
        self.url, self.other, self.avoid_until = url.rstrip("/"), other, 0.0
        here = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
        self.may_have_token = here or parts.scheme == "https"


class Rooms:
    """The rooms that a client may ask. All methods are safe for concurrent use."""

    def __init__(self, addresses: Sequence[str], fallback: Sequence[str], timeout: float, token_file: Optional[str],
                 tls: Tuple[Optional[str], Optional[str], Optional[str]]) -> None:
        if not addresses:
            raise MarchError(Kind.INVALID, "addresses: none; allowed: 1 or more")
        first = random.randrange(len(addresses))  # so that clients spread over the instances of a room
        self._rooms = [Room(a, False) for a in (*addresses[first:], *addresses[:first])]
        self._rooms += [Room(a, True) for a in fallback]
        self._answers: Optional[Room] = None  # the one that answered last
        self._timeout, self._token_file, self._tls = timeout, token_file, tls
        self._plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._opener()  # so that a file that cannot be used is an error at once

    def ask(self, path: str, body: Optional[Mapping[str, Any]] = None, prefer: Optional[Room] = None,
            method: str = "POST") -> Tuple[Dict[str, Any], Room, float]:
        """The answer of the first room that gives one, that room, and when the request was sent."""
        failures: List[MarchError] = []
        began = now()
        for room in sorted(self._rooms, key=lambda r: -1 if r is prefer else 3 if began < r.avoid_until else
                           2 if r.other else 0 if r is self._answers else 1):
            sent = now()
            try:
                answer, self._answers = self._call(room, method, path, body), room
                return answer, room, sent
            except MarchError as error:
                if not error.elsewhere():
                    raise
                if not error.no_window:
                    self.avoid(room)
                failures.append(error)
            if now() - began >= TRIES * self._timeout:
                break
        kind = next((k for k in ELSEWHERE if any(e.kind is k for e in failures)), failures[0].kind)
        both = MarchError(kind, "; ".join(map(str, failures)), max(e.retry_after for e in failures))
        both.no_window = all(e.no_window for e in failures)
        raise both

    def avoid(self, room: Room) -> None:
        """Asks a room only after all others, for a while."""
        room.avoid_until = now() + AVOID

    def _call(self, room: Room, method: str, path: str, body: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
        name, headers = f"room at {room.url}", {"Content-Type": "application/json"}
        try:
            if self._token_file and not room.may_have_token:
                raise MarchError(Kind.UNAUTHENTICATED, f"{name}: no TLS, so the token is not sent")
            if self._token_file:
                with open(self._token_file, encoding="ascii") as file:
                    headers["Authorization"] = "Bearer " + file.read().strip()
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(room.url + path, data, headers, method=method)
            opener = self._opener() if room.url.startswith("https:") else self._plain
            with opener.open(request, timeout=self._timeout) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                raise error_of(error.code, error.read(), error.headers.get("Retry-After"), name) from None
        except (OSError, http.client.HTTPException) as error:
            raise MarchError(Kind.UNAVAILABLE, f"{name}: {error}") from error
        except ValueError as error:
            raise MarchError(Kind.INTERNAL, f"{name}: its answer makes no sense: {error}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        """An opener with the files of TLS as they are now: leases are few."""
        ca, cert, key = self._tls
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
        https = urllib.request.HTTPSHandler(context=context)
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), https)


_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """The client's clock, in seconds. It never goes back, and on Linux goes on while the machine is suspended."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

"""Calls of rooms: which instance to ask, and what its errors mean."""

from __future__ import annotations

import enum
import io
import json
import random
import re
import socket
import ssl
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

AVOID = 5.0  # seconds for which an instance that failed is asked only after all others
LONGEST = 30.0  # seconds that an answer may have a client wait
TRIES = 3  # how many hanging instances a call waits for


class Kind(enum.Enum):
    """What a caller can do about an error."""

    # Another instance may succeed. Of the failures of several the first of these is the call's.
    UNAVAILABLE = "unavailable"  # no room has IDs now, and none are held: try again
    TOO_MANY = "too_many"  # a limit of the server is reached: try again
    WENT_BACK = "went_back"  # leasing is halted: try again
    NO_RANGE = "no_range"  # the room has no range: try again
    # Every instance would answer the same.
    INTERNAL = "internal"  # a defect
    INVALID = "invalid"  # the request can never succeed as it is
    NOT_FOUND = "not_found"  # there is no such tag
    EXHAUSTED = "exhausted"  # the tag is at its limit
    REFUSED = "refused"  # an operator must act first
    DENIED = "denied"  # the caller lacks the right
    UNAUTHENTICATED = "unauthenticated"  # no valid token or certificate
    CLOSED = "closed"  # the client was closed


ELSEWHERE = list(Kind)[:4]
# What a status means without March's reason: it is a proxy's, or HTTP's own.
STATUSES = {400: Kind.INVALID, 401: Kind.UNAUTHENTICATED, 403: Kind.DENIED, 429: Kind.TOO_MANY,
            **dict.fromkeys((408, 499, 502, 503, 504), Kind.UNAVAILABLE)}


class MarchError(Exception):
    """An error of March. retry_after is how many seconds to wait before another try."""

    def __init__(self, kind: Kind, message: str, retry_after: float = 1.0, limit: int = 0,
                 no_window: bool = False) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind, retry_after
        self.limit = limit  # of an exhausted tag, where it is known
        self.no_window = no_window  # no worker is free for a time-ordered tag: rooms still issue its IDs

    def __reduce__(self) -> Tuple[Any, ...]:
        return MarchError, (self.kind, str(self), self.retry_after, self.limit, self.no_window)

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
    reason, found = answer.get("reason"), answer.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    kind = {k.value: k for k in Kind if k is not Kind.CLOSED}.get(str(reason), STATUSES.get(status, Kind.INTERNAL))
    if reason and kind.value != reason and kind not in ELSEWHERE:  # of a later release, or another program's
        kind = Kind.INTERNAL
    limit = re.fullmatch("[0-9]{1,19}", str(metadata.get("limit")))
    return MarchError(kind, f"{room}: {answer.get('message') or f'HTTP status {status}'}",
                      min(max(1.0, float(retry_after or 0)), LONGEST) if (retry_after or "").isdecimal() else 1.0,
                      int(limit[0]) if limit else 0, metadata.get("window") == "none")


def together(failures: Sequence[MarchError]) -> MarchError:
    """The error of a call after the failures of several instances."""
    kind = next((k for k in ELSEWHERE if any(e.kind is k for e in failures)), failures[0].kind)
    return MarchError(kind, "; ".join(map(str, failures)), max(e.retry_after for e in failures),
                      no_window=all(e.no_window for e in failures))


class Room:
    """The address of an instance, or of several instances of one room."""

    def __init__(self, url: str, other: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MarchError(Kind.INVALID, f"address: {url!r}; allowed: http://HOST:PORT, https://HOST:PORT")
        self.url, self.other, self.avoid_until = url, other, 0.0
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.may_have_token = self.secure or self.host in ("localhost", "::1") or self.host.startswith("127.")


class Rooms:
    """The rooms that a client may ask. All methods are safe for concurrent use."""

    def __init__(self, addresses: Sequence[str], fallback: Sequence[str], timeout: float, token_file: Optional[str],
                 tls: Tuple[Optional[str], Optional[str], Optional[str]]) -> None:
<<<<<<< HEAD
        own = random.sample(addresses, len(addresses))  # so that clients spread over the instances of a room
        self.failed = dict.fromkeys((*own, *fallback), -AVOID)  # when each address failed last
        if not own or not all(re.fullmatch(r"https?://([^][/:@]+|\[[^]/]+\])(:\d+)?/?", a) for a in self.failed):
            raise MarchError(Kind.INVALID, f"addresses: {list(self.failed)}; allowed: 1 or more http[s]://HOST:PORT")
        self._timeout, self._token_file, self._tls, self.fallback = timeout, token_file, tls, fallback
        self.closed, self.longest = False, PATIENCE + (TRIES + 1) * timeout  # seconds that a call takes at most
=======
        if not addresses:
            raise MarchError(Kind.INVALID, "addresses: none; allowed: 1 or more")
        first = random.randrange(len(addresses))  # so that clients spread over the instances of a room
        self._rooms = [Room(a, False) for a in (*addresses[first:], *addresses[:first])]
        self._rooms += [Room(a, True) for a in fallback]
        self._answers: Optional[Room] = None  # the one that answered last
        self._timeout, self._token_file, self._tls = timeout, token_file, tls
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)
        self._context()  # so that a file that cannot be used is an error at once

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
        raise together(failures)

    def avoid(self, room: Room) -> None:
        """Asks a room only after all others, for a while."""
        room.avoid_until = now() + AVOID

    def _call(self, room: Room, method: str, path: str, body: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
        name, until = f"room at {room.url}", now() + self._timeout
        headers, context = self._headers(room), self._context() if room.secure else None
        try:
            connection = (HTTPSConnection(room.host, room.port, timeout=self._timeout, context=context)
                          if room.secure else HTTPConnection(room.host, room.port, timeout=self._timeout))
            with closing(connection):
                connection.request(method, path, json.dumps(body) if body else None, headers)
                answer = HTTPResponse(_Reader(connection.sock, until), method=method)  # type: ignore[arg-type]
                answer.begin()
                text = answer.read()
            if answer.status != 200:
                raise error_of(answer.status, text, answer.getheader("Retry-After"), name)
            return dict(json.loads(text))
        except (OSError, HTTPException) as error:
            raise MarchError(Kind.UNAVAILABLE, f"{name}: {error}") from error
        except ValueError as error:
            raise MarchError(Kind.INTERNAL, f"{name}: its answer makes no sense: {error}") from error

    def _headers(self, room: Room) -> Dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token_file:
            if not room.may_have_token:
                raise MarchError(Kind.UNAUTHENTICATED, f"room at {room.url}: no TLS, so the token is not sent")
            try:
                with open(self._token_file, "rb") as file:
                    token = file.read().strip()
            except OSError as error:
                raise MarchError(Kind.UNAUTHENTICATED, f"token: {error}") from error
            if not token or min(token) <= 32 or max(token) >= 127:  # http.client's error would have its text
                raise MarchError(Kind.UNAUTHENTICATED, f"{self._token_file}: no token of one word")
            headers["Authorization"] = "Bearer " + token.decode()
        return headers

    def _context(self) -> ssl.SSLContext:
        """The files of TLS as they are now: leases are few."""
        ca, cert, key = self._tls
        try:
            context = ssl.create_default_context(cafile=ca)
            if cert:
                context.load_cert_chain(cert, key)
            return context
        except OSError as error:  # which names no file
            raise MarchError(Kind.INVALID, f"ca {ca}, cert {cert}, key {key}: {error}") from error


class _Reader(io.RawIOBase):
    """What a socket receives up to a time: its own timeout is one of each read, and a proxy may drip."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(max(self._until - now(), 0.001))
        return self._sock.recv_into(buffer)


# Linux's, or macOS', that goes on while the machine is suspended; Windows' own does.
_BOOT = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", None))


def now() -> float:
    """The client's clock, in seconds. It never goes back, and goes on while the machine is suspended."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

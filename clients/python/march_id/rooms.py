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
from dataclasses import astuple, dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar
from urllib.parse import SplitResult, urlsplit

PATIENCE = 3.0  # seconds for which callers wait for rooms that do not answer; later ones get the error at once
AVOID = 5.0  # seconds for which an instance that failed is asked only after all others
LONGEST = 30.0  # seconds that an answer may have a client wait
TRIES = 3  # how many hanging instances a call waits for
Read = TypeVar("Read")
LOOPBACK = r"localhost|::1|127(\.(25[0-5]|(2[0-4]|1?[0-9])?[0-9])){3}"  # names that only begin so are others' hosts


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
REASONS = {kind.value: kind for kind in Kind if kind is not Kind.CLOSED}
# What a status means without March's reason: it is a proxy's, or HTTP's own.
STATUSES = {400: Kind.INVALID, 401: Kind.UNAUTHENTICATED, 403: Kind.DENIED, 429: Kind.TOO_MANY,
            **dict.fromkeys((408, 499, 502, 503, 504), Kind.UNAVAILABLE)}


@dataclass(eq=False)
class MarchError(Exception):
    """An error of March."""

    kind: Kind
    message: str
    retry_after: float = 1.0  # seconds to wait before another try
    limit: int = 0  # of an exhausted tag, where it is known
    no_window: bool = False  # no worker is free for a time-ordered tag: rooms still issue its IDs

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:
        return MarchError, astuple(self)

    @property
    def temporary(self) -> bool:
        """Whether another try may succeed: no room has IDs, or may give any, at the moment."""
        return self.kind in ELSEWHERE


def error_of(status: int, body: bytes, retry_after: Optional[str] = None, room: str = "room") -> MarchError:
    """The error of an answer that is no success."""
    try:
        answer = dict(json.loads(body))
    except (ValueError, TypeError):
        answer = {}
    reason, found = answer.get("reason"), answer.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    kind = STATUSES.get(status, Kind.INTERNAL)
    if reason and kind not in ELSEWHERE:  # a reason of a later release, or of another program, is no other kind
        kind = Kind.INTERNAL
    limit = re.fullmatch("[0-9]{1,19}", str(metadata.get("limit")))
    after = float(retry_after) if retry_after and retry_after.isdecimal() else 1.0
    return MarchError(REASONS.get(str(reason), kind), f"{room}: {answer.get('message') or f'HTTP status {status}'}",
                      min(max(1.0, after), LONGEST), int(limit[0]) if limit else 0, metadata.get("window") == "none")


def together(failures: Sequence[MarchError]) -> MarchError:
    """The error of a call after the failures of several instances."""
    return replace(min(failures, key=lambda e: list(Kind).index(e.kind)), message="; ".join(map(str, failures)),
                   no_window=any(e.no_window for e in failures))


class Rooms:
    """The rooms that a client may ask. All methods are safe for concurrent use."""

    def __init__(self, addresses: Sequence[str], fallback: Sequence[str], timeout: float, token_file: Optional[str],
                 tls: Tuple[Optional[str], Optional[str], Optional[str]]) -> None:
        own = random.sample(addresses, len(addresses))  # so that clients spread over the instances of a room
        self.failed = dict.fromkeys((*own, *fallback), -AVOID)  # when each address failed last,
        self.lagging = dict(self.failed)  # and when it lagged behind the newest layout
        found = [re.fullmatch(r"https?://([^][/:@]+|\[[^]/]+\])(:([0-9]{1,5}))?/?", a) for a in self.failed]
        if not own or not all(a and int(a[3] or 0) < 65536 for a in found):
            raise MarchError(Kind.INVALID, f"addresses: {list(self.failed)}; allowed: 1 or more http[s]://HOST:PORT")
        self._timeout, self._token_file, self._tls, self.fallback = timeout, token_file, tls, fallback
        self.closed, self.longest = False, PATIENCE + (TRIES + 1) * timeout  # seconds that a lease may take
        self._context()  # so that a file that cannot be used is an error at once

    def ask(self, path: str, read: Callable[[Any], Read], body: Optional[Mapping[str, Any]] = None,
            patience: float = PATIENCE) -> Tuple[Read, str, float]:
        """What is read of the first answer of a room, the room's address, and when the request was sent. Without a body
        the request is a GET. After a temporary error of all it asks again, as long as its patience lasts."""
        give_up, pause, failed = now() + patience, 0.02, self.failed
        while True:
            failures: List[MarchError] = []
            began = now()
            # Of the instances of a room the one that failed last is asked last, after one that lags behind.
            for url in sorted(failed, key=lambda u: (began < failed[u] + AVOID, u in self.fallback,
                                                     began < self.lagging[u] + AVOID, failed[u])):
                sent = now()
                try:
                    return self._call(url, path, read, body), url, sent
                except MarchError as error:
                    if not error.no_window and (error.temporary or error.kind is Kind.INTERNAL):
                        failed[url] = now()
                    if not error.temporary and not error.no_window:
                        raise
                    failures.append(error)
                if now() - began >= TRIES * self._timeout:
                    break
            why = together(failures)
            wait = pause * random.uniform(0.5, 1) if why.kind is Kind.UNAVAILABLE else why.retry_after
            if not why.temporary or why.no_window or now() + wait >= give_up:
                raise why
            time.sleep(wait)
            pause = min(2 * pause, 0.5)

    def _call(self, url: str, path: str, read: Callable[[Any], Read], body: Optional[Mapping[str, Any]]) -> Read:
        if self.closed:
            raise MarchError(Kind.CLOSED, "the client was closed")
        name, to, until, method = f"room at {url}", urlsplit(url), now() + self._timeout, "POST" if body else "GET"
        headers = {**self._headers(to), "Content-Type": "application/json", "Connection": "close"}
        connection = HTTPConnection(str(to.hostname), to.port or {"http": 80, "https": 443}[to.scheme])
        whole = _Whole()
        try:
            with closing(self._connect(connection.host, connection.port, to.scheme, until)) as connection.sock:
                connection.request(method, path, json.dumps(body) if body else None, headers)
                part = b"-"
                while part:  # each read has a limit of its own, and a proxy may drip
                    connection.sock.settimeout(max(until - now(), 0.001))
                    part = connection.sock.recv(65536)
                    whole.write(part)
            whole.seek(0)
            answer = HTTPResponse(whole, method=method)  # type: ignore[arg-type]
            answer.begin()
            text = answer.read()
            if answer.status != 200:
                raise error_of(answer.status, text, answer.getheader("Retry-After"), name)
            return read(json.loads(text))
        except (OSError, HTTPException) as error:
            raise MarchError(Kind.UNAVAILABLE, f"{name}: {error}") from error
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            raise MarchError(Kind.INTERNAL, f"{name}: its answer makes no sense: {error}") from error

    def _connect(self, host: str, port: int, scheme: str, until: float) -> socket.socket:
        """A socket. Each address of a name has its part of the time to connect, but not less than half a second, so not
        all of many are tried."""
        context, why = self._context() if scheme == "https" else None, OSError("timed out")
        found = list({where[4][:2] for where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
        for where in random.sample(found, len(found)):
            left = until - now()
            if left <= 0:
                break
            try:
                sock = socket.create_connection(where, min(left, max(self._timeout / len(found), 0.5)))
            except OSError as error:
                why = error
                continue
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request's body follows its head
                sock = context.wrap_socket(sock, server_hostname=host) if context else sock
                sock.settimeout(max(until - now(), 0.001))
                return sock
            except OSError as error:
                sock.close()
                why = error
        raise why

    def _headers(self, to: SplitResult) -> Dict[str, str]:
        if not self._token_file:
            return {}
        if to.scheme != "https" and not re.fullmatch(LOOPBACK, str(to.hostname)):
            raise MarchError(Kind.UNAUTHENTICATED, f"room at {to.geturl()}: no TLS, so the token is not sent")
        try:
            with open(self._token_file, encoding="latin-1") as file:
                token = file.read().strip()
        except OSError as error:
            raise MarchError(Kind.UNAUTHENTICATED, f"token: {error}") from error
        if not re.fullmatch("[!-~]+", token):  # http.client's error would have its text
            raise MarchError(Kind.UNAUTHENTICATED, f"{self._token_file}: no token of one word")
        return {"Authorization": f"Bearer {token}"}

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


class _Whole(io.BytesIO):
    """What a socket received."""

    def makefile(self, _: str) -> _Whole:
        return self


# The client's clock, in seconds. It never goes back, and goes on while the machine is suspended: as the first of these
# on Linux, the second on macOS, and as Windows' own.
_BOOT: Optional[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", None))
now: Callable[[], float] = time.monotonic
if _BOOT is not None:
    now = partial(time.clock_gettime, _BOOT)

"""A client that issues IDs in this process, from what it leases ahead."""

from __future__ import annotations

import math
import os
import random
import secrets
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence
from urllib.parse import quote

from .ids import Part, Segment, Ticks, part_of, seconds, segment_of
from .rooms import Kind, MarchError, Room, Rooms, now

PATIENCE = 3.0  # seconds for which callers wait for rooms that do not answer; later ones get the error at once
PIECE = 4096  # how many IDs of a segment are made at a time
MOST = 1_000_000_000  # IDs of a lease
BATCH = 100_000  # IDs that a room issues at once
AHEAD = 10_000  # ms by which the clock may be ahead of a room's


class Text(NamedTuple):
    """An ID as a text. id is None where the tag's IDs have 80 bits, and exist only as texts."""

    text: str
    id: Optional[int]


class Client:
    """Issues unique IDs of any number of tags. All methods are safe for concurrent use, and after a fork.

    addresses are URLs of instances of one room; rooms of fallback are asked if none of these leases IDs. The IDs
    held last reserve seconds at the recent rate; a lease is of min_step to max_step IDs. Tags in warm hold IDs
    when the client is made. An instance has timeout seconds to answer. token_file has the token to give with each
    call, ca the servers' CAs; cert and key prove who the client is. Files that change are read again.
    """

    def __init__(self, addresses: Sequence[str], *, fallback: Sequence[str] = (), warm: Sequence[str] = (),
                 reserve: float = 30, min_step: int = 1000, max_step: int = MOST, timeout: float = 2,
                 token_file: Optional[str] = None, ca: Optional[str] = None, cert: Optional[str] = None,
                 key: Optional[str] = None) -> None:
        if not (1 <= min_step <= max_step <= MOST and reserve >= 1 and timeout > 0):
            raise MarchError(Kind.INVALID, f"allowed: 1 <= min_step <= max_step <= {MOST}, reserve >= 1, timeout > 0")
        self._reserve, self._min, self._max = reserve, min_step, max_step
        self._rooms = Rooms(addresses, fallback, timeout, token_file, (ca, cert, key))
        self._tags: Dict[str, Tag] = {}
        self._began, self._closed = now(), False
        self._newest = Part(0, 0, 0, 0)  # the own room's part of the newest layout that an answer named
        self._begin()
        _clients.add(self)
        try:
            for name in warm:
                self.tag(name).warm()
        except BaseException:
            self.close()
            raise

    def next(self, tag: str) -> int:
        """An ID of a tag. It waits only while none is held, for some seconds at most."""
        try:
            return self._tags[tag]._pop()
        except (KeyError, IndexError):
            pass
        return self.tag(tag).next()

    def tag(self, name: str) -> Tag:
        """A handle to a tag. It asks no room."""
        with self._changed:
            return self._tags.get(name) or self._tags.setdefault(name, Tag(self, name))

    def close(self) -> None:
        """Drops all IDs that are held, and ends all calls that wait."""
        with self._changed:
            self._closed = True
            for tag in self._tags.values():
                tag._drop(lambda _: True)
            self._changed.notify_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Holds no IDs: at first, and in the child of a fork, as its parent goes on with those that are held."""
        self._changed = threading.Condition()  # its lock guards the client and its tags
        self._keeper: Optional[threading.Thread] = None
        self._look = False  # whether the keeper should look at once
        # Since when no room answers (0: one does), with which error, when one is asked again, and the pause then.
        self._away, self._error, self._retry_at, self._pause = 0.0, MarchError(Kind.UNAVAILABLE, ""), 0.0, 0.0
        for tag in self._tags.values():
            tag._begin()

    def _keep(self) -> None:
        """Looks after all tags: drops what has ended, and leases ahead."""
        with self._changed:
            while not self._closed:
                self._look, wake = False, now() + 1
                for tag in list(self._tags.values()):
                    wake = min(wake, tag._tend(now()))
                if not self._look:
                    self._changed.wait(max(wake - now(), 0.001))

    def _wake_keeper(self) -> None:
        self._look = True
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="march", daemon=True)
            self._keeper.start()
        self._changed.notify_all()


class Tag:
    """Issues the IDs of one tag. All methods are safe for concurrent use."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self._client, self._path = name, client, "/v1/tags/" + quote(name, safe="")
        self._ids: Deque[int] = deque()
        self._pop = self._ids.popleft  # one step, so no two threads get the same ID
        self._ticks: Optional[Ticks] = None  # of a time-ordered tag
        self._begin()

    def _begin(self) -> None:
        self._ids.clear()
        self._front: Optional[Segment] = None  # of which the IDs are
        self._segments: List[Segment] = []  # to come
        self._window = (0, 0, 0)  # of a time-ordered tag: worker, since, until
        self._room: Optional[Room] = None  # that lends the worker, and the proof that it is ours
        self._nonce, self._renew_at, self._version = "", 0.0, 0
        self._target, self._limit, self._ttl = self._client._min, 0, 0.0
        self._out = self._looked = 0  # IDs that went to callers or into _ids; how many were issued at the last look
        self._used, self._paced = now(), (0, now())  # when the target was computed: IDs issued, and the time
        self._timed = self._leasing = self._known = False
        self._failed, self._failed_until, self._replace_at, self._pause = MarchError(Kind.INTERNAL, ""), 0.0, 0.0, 1.0

    def next(self) -> int:
        """An ID. It waits only while none is held, for some seconds at most."""
        while True:
            try:
                return self._pop()
            except IndexError:
                pass
            self.warm()
            if self._timed:
                return self._next_timed(1)[0].start

    def next_n(self, n: int) -> List[range]:
        """n IDs, as ranges."""
        if not 1 <= n <= MOST:
            raise MarchError(Kind.INVALID, f"count: {n}; allowed: 1 to {MOST}")
        runs: List[range] = []
        with self._client._changed:
            if sum(s.count for s in self._segments) < n:
                self._put_back()
            self._wait(n)
            while n and not self._timed:
                taken, rest = self._segments.pop(0).split(n)
                self._segments[:0] = [rest] if rest.count else []
                runs.extend(taken.runs())
                n, self._out = n - taken.count, self._out + taken.count
            self._client._wake_keeper()
        return self._next_timed(n) if n else runs

    def next_text(self) -> Text:
        """An ID as a text, by the tag's format, of a room."""
        answer = self._client._rooms.ask(self._path + "/next?count=1&texts=true")[0]
        if not answer.get("texts"):
            raise MarchError(Kind.REFUSED, f"tag {self.name}: it has no format, so its IDs have no texts")
        return Text(answer["texts"][0], int(answer["runs"][0]["first"]) if answer["runs"] else None)

    def parse_text(self, text: str) -> int:
        """The ID of a text, of a room."""
        path = f"{self._path}:parse?text={quote(text, safe='')}"
        return int(self._client._rooms.ask(path, method="GET")[0]["id"])

    def warm(self) -> None:
        """Returns when IDs are held."""
        with self._client._changed:
            if not self._ids:
                self._wait(1)
            if not self._ids and self._segments:
                self._front, rest = self._segments.pop(0).split(min(max(self._target // 8, 1), PIECE))
                self._segments[:0] = [rest] if rest.count else []
                self._out += self._front.count
                for run in self._front.runs():
                    self._ids.extend(run)
                if self._need(now()):
                    self._client._wake_keeper()

    def _wait(self, n: int) -> None:
        """Returns when the segments to come have n IDs, or the tag is time-ordered. The lock is held."""
        c, give_up = self._client, now() + PATIENCE
        while True:
            self._used = at = now()
            held = sum(s.count for s in self._segments)
            if c._closed:
                raise MarchError(Kind.CLOSED, "the client was closed")
            if self._timed and (at < self._failed_until or time.time() * 1000 < self._window[2]):
                return  # its window has IDs, or a room issues them
            if not self._timed and held >= n:
                return
            if at < self._failed_until:
                raise self._failed.with_traceback(None)
            if c._away and at - c._away >= PATIENCE:
                raise c._error.with_traceback(None)
            if at >= give_up:
                raise MarchError(Kind.UNAVAILABLE, f"tag {self.name}: no IDs within {PATIENCE:g} s")
            if not self._leasing and at >= c._retry_at:
                self._lease(max(n - held, self._need(at), 1))
            else:
                c._changed.wait((give_up if self._leasing else min(give_up, c._retry_at)) - at)

    def _next_timed(self, n: int) -> List[range]:
        """n IDs of a time-ordered tag: of its worker's window, or else of a room."""
        runs: List[range] = []
        while n > 0:
            with self._client._changed:
                self._wait(0)
                at = time.time_ns() // 1_000_000
                run = self._ticks.take(n, at, *self._window) if self._ticks and self._timed else None
            if run is None:
                answer = self._client._rooms.ask(f"{self._path}/next?count={min(n, BATCH)}")[0]
                for r in answer["runs"]:
                    first, count, step = int(r["first"]), int(r["count"]), int(r.get("stride") or 1)
                    runs.append(range(first, first + count * step, step))
                n -= min(n, BATCH)
            elif run:
                runs.append(run)
                n -= len(run)
            elif self._ticks:
                time.sleep(self._ticks.left(at))
        return runs

    def _put_back(self) -> None:
        """Makes a segment of the IDs that next would find. Others may take them meanwhile, from the other end."""
        n = 0
        with suppress(IndexError):
            while True:
                self._ids.pop()
                n += 1
        if n and self._front:
            self._segments.insert(0, self._front.split(self._front.count - n)[1])
            self._out -= n

    def _drop(self, ends: Callable[[Segment], bool]) -> None:
        """Drops segments, at once."""
        if self._front is not None and ends(self._front):
            self._out -= len(self._ids)
            self._ids.clear()
        self._segments = [s for s in self._segments if not ends(s)]

    def _holding(self) -> List[Segment]:
        return [self._front, *self._segments] if self._ids and self._front else self._segments

    def _old(self, s: Segment) -> bool:
        """Whether a segment must be replaced: it ends soon, or the room gave up a part of its range."""
        return s.aging(now(), self._ttl) or self._client._newest.outdates(s)

    def _need(self, at: float) -> int:
        """How many IDs to lease now. Of a window it is 1."""
        if self._timed:
            changed = self._version < self._client._newest.version  # the room may have given up the worker
            return int(at >= (self._replace_at if changed else self._renew_at))
        held = len(self._ids) + sum(s.count for s in self._segments)
        if at >= self._replace_at and any(map(self._old, self._holding())):
            return max(self._target, min(held, 2 * self._target))
        return self._target if held < self._target else 0

    def _tend(self, at: float) -> float:
        """Looks after the tag, and returns when to do so again. The lock is held."""
        c, issued = self._client, self._out - len(self._ids)
        if issued != self._looked:
            self._looked, self._used = issued, at
        self._drop(lambda s: s.until <= at)
        again = min((s.until for s in self._holding()), default=math.inf)
        if not self._known or self._leasing or (self._ttl and at - self._used >= self._ttl):
            return again  # unused: let it end
        if self._need(at) and at >= max(c._retry_at, self._failed_until):
            self._lease(self._need(at))
            return now() + 0.01  # look again
        if self._need(at):
            return min(again, max(c._retry_at, self._failed_until))
        due = self._renew_at if self._timed else again - self._ttl / 3
        return min(again, max(due, self._replace_at))

    def _lease(self, n: int) -> None:
        """Leases n IDs, or a window, or notes why not. The lock is held, but not while a room is asked."""
        c, n, nonce = self._client, min(n, MOST), secrets.token_hex(16)
        window: Dict[str, Any] = {"nonce": nonce, "age": f"{now() - c._began:.3f}s"}
        if self._room:
            window["held"] = {"worker": str(self._window[0]), "nonce": self._nonce}
        self._leasing, self._replace_at = True, now() + min(self._pause, max(self._ttl / 6, 0.1))
        self._pause = min(2 * self._pause, 60.0)
        if c._away:  # until then no other tag asks
            c._retry_at = now() + c._pause
        try:
            c._changed.release()
            try:
                answer, room, sent = c._rooms.ask(
                    self._path + "/lease", {"count": str(n), "window": window}, self._room)
            finally:
                c._changed.acquire()
            c._away = c._retry_at = c._pause = 0.0
            if not c._closed:
                self._accept(answer, room, sent, n, nonce)
                self._known, self._failed_until = True, 0.0
        except MarchError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, callers and the keeper go on
            self._fail(MarchError(Kind.INTERNAL, f"tag {self.name}: an answer makes no sense: {error!r}"))
        finally:
            self._leasing = False
            c._changed.notify_all()

    def _fail(self, error: MarchError) -> None:
        c, at = self._client, now()
        if error.kind is Kind.UNAVAILABLE and not error.no_window:
            c._away, c._error, c._pause = c._away or at, error, min(max(2 * c._pause, 0.02), 0.5)
            c._retry_at = at + c._pause * random.uniform(0.5, 1)
            return
        self._failed = error
        self._failed_until = at + max(error.retry_after, self._pause if error.no_window else 0)
        self._timed = error.no_window or self._timed and error.kind is not Kind.NOT_FOUND
        self._limited(error.limit)
        if error.kind is Kind.NOT_FOUND and not self._known:
            c._tags.pop(self.name, None)  # so that names of no tag do not fill the memory

    def _limited(self, limit: int) -> None:
        """Drops the IDs from a limit on."""
        if limit and limit != self._limit:
            self._put_back()
            self._limit, self._segments = limit, [s for s in (s.below(limit) for s in self._segments) if s.count]

    def _accept(self, answer: Dict[str, Any], room: Room, sent: float, n: int, nonce: str) -> None:
        """Adds what an answer leases. Its error says why it cannot."""
        c, at, serves, timed = self._client, now(), part_of(answer["serves"]), answer["time"]
        if not room.other and serves.version > c._newest.version:
            c._newest = serves
            c._wake_keeper()
        elif not room.other and serves.version < c._newest.version:
            c._rooms.avoid(room)  # it lags behind, but what it leases is valid
        self._timed = bool(timed)
        if timed:
            worker, since, until, there = (int(timed["window"][k]) for k in ("worker", "fromMs", "untilMs", "nowMs"))
            if (time.time() - (at - sent)) * 1000 - there > AHEAD:
                raise MarchError(Kind.REFUSED, f"tag {self.name}: the clock is ahead of that of the room at {room.url}")
            self._ticks, self._window = Ticks(timed["tag"], self._ticks), (worker, since, until)
            self._ttl = (until - max(there, since)) / 1000
            self._room, self._nonce, self._renew_at, self._pause = room, nonce, at + self._ttl / 2, 1.0
            self._version = c._newest.version
            return
        self._ttl = seconds(answer["ttl"])
        s = segment_of(answer["segment"], n, sent + self._ttl if self._ttl else math.inf)
        self._limited(int(answer["limit"]))
        s = s.below(self._limit) if self._limit else s
        if s.until <= at:
            raise MarchError(Kind.UNAVAILABLE, f"room at {room.url}: its answer took longer than {self._ttl} s")
        if not s.count:
            raise MarchError(Kind.EXHAUSTED, f"tag {self.name}: no ID is left below the limit {self._limit}")
        if not self._old(s):
            self._drop(self._old)
            self._pause, self._replace_at = 1.0, 0.0
        self._segments.append(s)
        issued = self._out - len(self._ids)
        taken, took = issued - self._paced[0], at - self._paced[1]
        if taken >= self._target / 8 or took >= 10:  # enough to tell the rate
            wanted = taken / max(took, 0.001) * c._reserve * 8 / 7
            self._target = int(min(max(wanted, self._target / 2, c._min), self._target * 2, c._max))
            self._paced = (issued, at)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forked() -> None:
    for client in list(_clients):
        client._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

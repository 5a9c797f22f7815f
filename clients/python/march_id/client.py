"""A client that issues IDs in this process, from what it leases ahead."""

from __future__ import annotations

import math
import mmap
import os
import random
import re
import secrets
import sys
import threading
import time
from copy import copy
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence
from urllib.parse import quote

from .ids import Part, Segment, Ticks, part_of, run_of, seconds, segment_of
from .rooms import Kind, MarchError, Room, Rooms, now

PATIENCE = 3.0  # seconds for which callers wait for rooms that do not answer; later ones get the error at once
MOST = 1_000_000_000  # IDs of a lease
BATCH = 100_000  # IDs that a room issues at once
AHEAD = 10_000  # ms by which the clock may be ahead of a room's
NONE = Segment(0, 1, 0, 1, 0, 0)
NAME = "[a-z0-9][a-z0-9._-]{0,62}"


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
        self._closed = False
        self._newest = Part(0, 0, 0, 0)  # the own room's part of the newest layout that an answer named
        self._begin()
        try:
            for name in warm:
                self.tag(name).warm()
        except BaseException:
            self.close()
            raise

    def next(self, tag: str) -> int:
        """An ID of a tag. It waits only while none is held, for some seconds at most."""
        return (self._tags.get(tag) or self._tag(tag)).next()

    def tag(self, name: str) -> Tag:
        """A handle to a tag, which the client keeps. It asks no room."""
        return self._tag(name, True)

    def _tag(self, name: str, kept: bool = False) -> Tag:
        self._check_fork()
        with self._lock:
            tag = self._tags.get(name) or self._tags.setdefault(name, Tag(self, name))
            tag._kept |= kept
            return tag

    def close(self) -> None:
        """Drops all IDs that are held. Calls that wait end, those that ask a room as soon as it has answered."""
        self._check_fork()
        with self._lock:
            self._closed = True
            for tag in self._tags.values():
                tag._begin()
            self._changed.notify_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Holds no IDs: at first, and in the child of a fork, as its parent goes on with those that are held."""
        self._lock = threading.Lock()  # guards the client and its tags
        self._changed = threading.Condition(self._lock)
        self._keeper: Optional[threading.Thread] = None
        self._began, self._own = now(), _own()
        for tag in list(self._tags.values()):
            tag._begin()

    def _check_fork(self) -> None:
        """Begins anew in the child of a fork. Of its lock, nobody knows who held it at the fork."""
        if not self._own[0]:
            with _begins.setdefault(os.getpid(), threading.Lock()):
                if not self._own[0]:
                    self._begin()

    def _keep(self) -> None:
        """Leases ahead for all tags: each second, and when a tag holds too little."""
        with self._lock:
            while not self._closed:
                if not any([tag._tend(now()) for tag in list(self._tags.values())]):
                    self._changed.wait(1)

    def _wake_keeper(self) -> None:
        if self._keeper is None:
            keeper = threading.Thread(target=self._keep, name="march", daemon=True)
            try:
                keeper.start()
                self._keeper = keeper
            except RuntimeError:  # no thread can start now: callers lease, and the next one tries again
                pass
        self._changed.notify_all()


class Tag:
    """Issues the IDs of one tag. All methods are safe for concurrent use."""

    def __init__(self, client: Client, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise MarchError(Kind.INVALID, f"tag: {name[:64]!r}; allowed: {NAME}")
        self.name, self._client, self._path = name, client, "/v1/tags/" + name
        self._kept = False  # the program has a handle: what is forgotten would not end with the client, nor at a fork
        self._ticks: Optional[Ticks] = None  # of a time-ordered tag
        self._begin()

    def _begin(self) -> None:
        self._lock, self._own = self._client._lock, self._client._own
        self._next, self._run = 0, NONE  # the next ID of the run of consecutive IDs that is handed out,
        self._end, self._until = 0, 0.0  # its end, and from when on it may not be used
        self._segments: List[Segment] = []  # after the run
        self._window, self._returns = (0, 0, 0), 0.0  # of a time-ordered tag: worker, since, until; by our clock
        self._lender: Optional[Room] = None  # of the worker, the proof that it is ours, and the layout of that time
        self._nonce, self._version = "", 0
        self._target, self._limit, self._ttl, self._used = self._client._min, 0, 0.0, now()
        self._out, self._paced = 0, (0, now())  # IDs up to the run's end; how many were issued when, at the last lease
        self._timed = self._leasing = self._known = False
        self._batch = BATCH  # IDs that a room issues of a time-ordered tag at once
        # Since when leases fail (0: they do not), why, when to ask again, and the pause then;
        self._failing, self._failed, self._retry_at = 0.0, MarchError(Kind.INTERNAL, ""), 0.0
        self._pause = 0.0
        self._due, self._again = 0.0, 1.0  # when to replace segments or renew the window, and the pause after a failure

    def next(self) -> int:
        """An ID. It waits only while none is held, for some seconds at most."""
        if not self._own[0]:
            self._client._check_fork()
        with self._lock:
            id, at = self._next, now()
            if id < self._end and at < self._until:
                self._next, self._used = id + 1, at
                return id
        return self.next_n(1)[0].start

    def next_n(self, n: int) -> List[range]:
        """n IDs, as ranges."""
        if not 1 <= n <= MOST:
            raise MarchError(Kind.INVALID, f"count: {n}; allowed: 1 to {MOST}")
        runs: List[range] = []
        self._client._check_fork()
        with self._lock:
            self._wait(n)
            while n and not self._timed:
                if self._next == self._end:
                    self._turn()
                run = range(self._next, min(self._end, self._next + n))
                runs.append(run)
                self._next, n = run.stop, n - len(run)
            if self._need(now()):
                self._client._wake_keeper()
        return self._next_timed(n) if n else runs

    def next_text(self) -> Text:
        """An ID as a text, by the tag's format, of a room."""
        answer = self._ask("/next", {"count": "1", "texts": True})
        if not answer.get("texts"):
            raise MarchError(Kind.REFUSED, f"tag {self.name}: it has no format, so its IDs have no texts")
        return Text(answer["texts"][0], int(answer["runs"][0]["first"]) if answer["runs"] else None)

    def parse_text(self, text: str) -> int:
        """The ID of a text, of a room."""
        return int(self._ask(f":parse?text={quote(text, safe='')}", None, "GET")["id"])

    def _ask(self, path: str, body: Optional[Dict[str, Any]], method: str = "POST") -> Dict[str, Any]:
        """The answer of a room. After a temporary error it asks again, for some seconds."""
        began, pause = now(), 0.0
        while not self._client._closed:
            try:
                return self._client._rooms.ask(self._path + path, body, method=method)[0]
            except MarchError as error:
                pause = min(max(2 * pause, 0.02), 0.5)
                wait = pause if error.kind is Kind.UNAVAILABLE else error.retry_after
                if not error.temporary or now() + wait >= began + PATIENCE:
                    raise
            time.sleep(wait)
        raise MarchError(Kind.CLOSED, "the client was closed")

    def warm(self) -> None:
        """Returns when IDs are held."""
        self._client._check_fork()
        with self._lock:
            self._wait(1)

    def _wait(self, n: int) -> None:
<<<<<<< HEAD
        """Returns when n IDs are held, or the tag is time-ordered: without a window a room issues."""
        give_up = now() + (PATIENCE if self._failed else self._rooms.longest)
=======
        """Returns when n IDs are held, or the tag is time-ordered. The lock is held."""
        c, give_up = self._client, now() + PATIENCE
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)
        while True:
            self._used = at = now()
            if c._closed:
                raise MarchError(Kind.CLOSED, "the client was closed")
            self._drop(lambda s: s.until <= at)
            if self._timed and (at < self._retry_at or at < self._returns and time.time() * 1000 < self._window[2]):
                return  # its window has IDs, or a room issues them
            if not self._timed and self._held() >= n:
                return
<<<<<<< HEAD
            failed = self._failed or MarchError(Kind.UNAVAILABLE, f"tag {self.name}: too few IDs are leased in time")
            if self._failed and at < self._retry_at or at >= give_up:
                raise replace(failed)
            if missing > self._wanted:  # or else callers would wake each other
                self._wanted = missing
                self._wake()
            self._changed.wait(give_up - at)
=======
            if at < self._retry_at and (not self._failed.temporary or at - self._failing >= PATIENCE):
                raise copy(self._failed)
            if at >= give_up:
                late = MarchError(Kind.UNAVAILABLE, f"tag {self.name}: no IDs within {PATIENCE:g} s")
                raise copy(self._failed) if self._failing else late
            if not self._leasing and at >= self._retry_at:
                self._lease(max(n - self._held(), self._need(at), 1))
            else:
                c._changed.wait((give_up if self._leasing else min(give_up, self._retry_at)) - at)
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)

    def _next_timed(self, n: int) -> List[range]:
        """n IDs of a time-ordered tag: of its worker's window, or else of a room."""
        runs: List[range] = []
        while n > 0:
            with self._lock:
                self._wait(0)
                at, held = time.time_ns() // 1_000_000, self._ticks and self._timed and now() < self._returns
                run = self._ticks.take(n, at, *self._window) if self._ticks and held else None
                count = min(n, self._batch)
            if run:
                runs.append(run)
                n -= len(run)
            elif run is not None and self._ticks:
                time.sleep(self._ticks.left(at))
            else:
                try:
                    got = [run_of(run) for run in self._ask("/next", {"count": str(count)})["runs"]]
                    runs, n = runs + got, n - sum(map(len, got))
                except MarchError as error:
                    if error.kind is not Kind.INVALID or count == 1:
                        raise
                    self._batch = count // 2  # more than one worker has in a second
        return runs

    def _held(self) -> int:
        return self._end - self._next + sum(s.count for s in self._segments)

    def _turn(self) -> None:
        """Takes the next run out of the segments."""
        s = self._segments.pop(0)
        self._run, rest = s.split(min(s.consecutive(), max(self._target // 8, 1)))
        self._segments[:0] = [rest] if rest.count else []
        self._next, self._end, self._until = s.first, s.first + self._run.count, s.until
        self._out += self._run.count

    def _drop(self, ends: Callable[[Segment], bool]) -> None:
        """Drops segments, at once."""
        if self._next < self._end and ends(self._run):
            self._cut(self._next)
        self._segments = [s for s in self._segments if not ends(s)]

    def _cut(self, end: int) -> None:
        """Ends the run at an ID."""
        self._out, self._end = self._out - (self._end - end), end

    def _limited(self, limit: int) -> None:
        """Drops the IDs from a limit on."""
        if limit and limit != self._limit:
            self._limit = limit
            self._cut(max(min(self._end, limit), self._next))
            self._segments = [s for s in (s.below(limit) for s in self._segments) if s.count]

    def _old(self, s: Segment) -> bool:
        """Whether a segment must be replaced: it ends soon, or the room gave up a part of its range."""
        return s.aging(now(), self._ttl) or self._client._newest.outdates(s)

<<<<<<< HEAD
    def _work(self) -> None:
        """Leases ahead, while the tag is in use. A tag without a handle is held by this alone."""
        with self._lock:
            try:
                while not self._rooms.closed and (
                        self._wanted or self._known and now() - self._used < (self._ttl or math.inf)):
                    at = now()
                    self._drop(lambda s: s.until <= at)
                    if self._need():
                        self._lease(self._need())
                    else:
                        self._changed.wait(min(self._retry_at - at, 1) if at < self._retry_at else 1)
            finally:
                self._working, self._wanted = False, 0
                self._changed.notify_all()

    def _lease(self, n: int) -> None:
        """Leases n IDs, or a window, or notes why not. While leases fail each is one try."""
        nonce = secrets.token_hex(16)
        patience = 0 if self._failed and self._failed.temporary else PATIENCE
        window: Dict[str, Any] = {"nonce": nonce, "age": f"{now() - self._client._began:.3f}s"}
        if self._window:
            window["held"] = {"worker": str(self._window.worker), "nonce": self._window.nonce}
        try:
            self._lock.release()
            try:
                answer, url, sent = self._rooms.ask(
                    self._path + "/lease", {"count": str(n), "window": window}, patience)
            finally:
                self._lock.acquire()
            if not self._rooms.closed:
                self._accept(answer, url, sent, n, nonce)
        except MarchError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, callers and the worker go on
            self._fail(MarchError(Kind.INTERNAL, f"tag {self.name}: an answer makes no sense: {error!r}"))
        self._changed.notify_all()

    def _fail(self, error: MarchError) -> None:
        self._failed, self._wanted = error.with_traceback(None), 0
        wait = 0.5 if error.kind is Kind.UNAVAILABLE else error.retry_after
        self._retry_at = now() + (SEEK if error.no_window else wait)
        self._timed, self._known = self._timed or error.no_window, self._known or error.no_window
        for s in self._segments if error.limit else ():
            s.cut(error.limit)

    def _accept(self, answer: Dict[str, Any], url: str, sent: float, n: int, nonce: str) -> None:
        """Adds what an answer leases. Its error says why it cannot."""
        client, at, serves = self._client, now(), part_of(answer["serves"])
        if url not in self._rooms.fallback:
            if serves.version < client._newest.version:
                self._rooms.failed[url] = at  # it lags behind, but what it leases is valid
            client._newest = max(client._newest, serves)
        self._known, self._timed, old = True, bool(answer["time"]), False
        if self._timed:
            w = self._window = Window(answer["time"], sent, nonce, client._newest.version, self._window)
            if (time.time() - (at - sent)) * 1000 - w.now_ms > AHEAD:
                w.until = 0.0  # rooms issue each ID
            self._ttl = w.ttl
        else:
            s = Segment(answer["segment"], n, sent, seconds(answer["ttl"]))
            for each in (*self._segments, s):
                each.cut(int(answer["limit"]) or 2**63)
            if s.until <= at:
                raise MarchError(Kind.UNAVAILABLE, f"room at {url}: its answer took longer than {s.ttl} s")
            if s.at == s.end:
                raise MarchError(Kind.EXHAUSTED, f"tag {self.name}: no ID is left below its limit")
            self._ttl, old = s.ttl, self._old(s)
            self._drop(lambda each: not old and self._old(each))
            self._pace(at)
            self._segments.append(s)
            self._leased += s.end - s.at
        self._failed, self._wanted, self._retry_at = None, 0, at + 1 if old else 0.0
=======
    def _need(self, at: float) -> int:
        """How many IDs to lease now. Of a window it is 1."""
        if self._timed:  # after a change of the layout the room may have given up the worker
            return int(at >= self._due or self._version < self._client._newest.version)
        held, holding = self._held(), [self._run] if self._next < self._end else []
        if at >= self._due and any(map(self._old, holding + self._segments)):
            return max(self._target, min(held, 2 * self._target))
        return self._target if held < self._target else 0

    def _tend(self, at: float) -> bool:
        """Leases ahead if the tag is in use, and returns whether it did. The lock is held."""
        self._drop(lambda s: s.until <= at)
        unused = not self._known or (self._ttl and at - self._used >= self._ttl)
        if unused or self._leasing or at < self._retry_at or not self._need(at):
            return False
        self._lease(self._need(at))
        return not self._failing
>>>>>>> 5da3d109 (ledger: Order calls over all rooms)

    def _pace(self, at: float) -> None:
        """Sets the target by the rate since it was last set."""
        issued = self._out - (self._end - self._next)
        taken, took = issued - self._paced[0], at - self._paced[1]
        if taken >= self._target / 8 or took >= 10:  # enough to tell the rate
            wanted = taken / max(took, 0.001) * self._client._reserve * 8 / 7
            self._target = int(min(max(wanted, self._target / 2, self._client._min), self._target * 2,
                                   self._client._max))
            self._paced = (issued, at)

    def _lease(self, n: int) -> None:
        """Leases n IDs or more, or a window, or notes why not. The lock is held, but not while a room is asked."""
        self._pace(now())
        c, n, nonce = self._client, min(max(n, self._need(now())), MOST), secrets.token_hex(16)
        window: Dict[str, Any] = {"nonce": nonce, "age": f"{now() - c._began:.3f}s"}
        if self._lender:
            window["held"] = {"worker": str(self._window[0]), "nonce": self._nonce}
        self._leasing, self._due = True, now() + min(self._again, max(self._ttl / 6, 0.1))
        self._again = min(2 * self._again, 60.0)  # until an answer replaces what is old
        try:
            c._lock.release()
            try:
                answer, room, sent = c._rooms.ask(
                    self._path + "/lease", {"count": str(n), "window": window}, self._lender)
            finally:
                c._lock.acquire()
            if not c._closed:
                self._accept(answer, room, sent, n, nonce)
                self._known, self._failing, self._retry_at, self._pause = True, 0.0, 0.0, 0.0
        except MarchError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, callers and the keeper go on
            self._fail(MarchError(Kind.INTERNAL, f"tag {self.name}: an answer makes no sense: {error!r}"))
        finally:
            self._leasing = False
            c._changed.notify_all()

    def _fail(self, error: MarchError) -> None:
        at = now()
        self._failing, self._failed, self._pause = self._failing or at, error, min(max(2 * self._pause, 0.02), 0.5)
        self._retry_at = at + self._pause * random.uniform(0.5, 1)
        if error.no_window or error.kind is not Kind.UNAVAILABLE:
            self._retry_at = at + max(error.retry_after, self._again if error.no_window else 0)
        self._timed = error.no_window or self._timed and error.kind is not Kind.NOT_FOUND
        self._limited(error.limit)
        refused = error.kind in (Kind.NOT_FOUND, Kind.INVALID, Kind.DENIED) and not self._known
        if refused and not self._kept and self._client._tags.get(self.name) is self:
            del self._client._tags[self.name]  # so that names of no tag do not fill the memory

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
            self._window, self._lender, self._nonce, self._returns = (worker, since, until), room, nonce, 0.0
            if (time.time() - (at - sent)) * 1000 - there > AHEAD:  # the worker is ours: the next answer renews it
                raise MarchError(Kind.REFUSED, f"tag {self.name}: the clock is ahead of that of the room at {room.url}")
            self._ticks = Ticks(timed["tag"], self._ticks)
            self._batch, self._returns = min(BATCH, self._ticks.per_second()), sent + (until - there) / 1000
            self._ttl, self._version = (until - max(there, since)) / 1000, c._newest.version
            self._due, self._again = at + self._ttl / 2, 1.0
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
            self._again, self._due = 1.0, 0.0
        self._segments.append(s)


_begins: Dict[int, threading.Lock] = {}  # by process


class _Pid:
    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, _: int) -> bool:
        return os.getpid() == self._pid


def _own() -> Any:
    """What has a true value at 0 in this process, but in no child of a fork, even of one in C that runs no hook of
    Python's. Linux clears the page in a child, and to read it costs less than a system call."""
    if sys.platform == "linux":
        try:
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(18)  # MADV_WIPEONFORK
            page[0] = 1
            return page
        except OSError:  # before Linux 4.14
            pass
    return _Pid()

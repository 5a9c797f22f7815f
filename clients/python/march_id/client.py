"""A client that issues IDs in this process, from what it leases ahead."""

from __future__ import annotations

import _thread
import math
import mmap
import os
import random
import re
import secrets
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar, Union
from urllib.parse import quote
from weakref import WeakValueDictionary

from .ids import NONE, Part, Segment, Window, part_of, runs_of, seconds
from .rooms import PATIENCE, Kind, MarchError, Rooms, now

LOOK = 0.25  # seconds between two looks at the tags in use
SEEK = 10.0  # seconds until the next try where no worker was free, or what was leased is to be replaced already
MOST = 1_000_000_000  # IDs of a lease
BATCH = 1000  # time-ordered IDs that a room issues at once
AHEAD = 10_000  # ms by which the clock may be ahead of a room's
LEASES = 16  # that are under way at once
UNKNOWN = 60.0  # seconds for which a name is in use of which a room has leased nothing
Taken = TypeVar("Taken")
NAME = "[a-z0-9][a-z0-9._-]{0,62}"


class Text(NamedTuple):
    """An ID as a text. id is None where the tag's IDs have 80 bits, and exist only as texts."""

    text: str
    id: Optional[int]


class Client:
    """Issues unique IDs of any number of tags. All methods are safe for concurrent use, and after a fork.

    addresses are URLs of instances of one room; rooms of fallback are asked if none of these leases IDs. The IDs
    held last reserve seconds at the recent rate; a lease ahead is of min_step to max_step IDs. An instance has timeout
    seconds to answer. token_file has the token to give with each call, ca the servers' CAs; cert and key prove who the
    client is. Files that change are read again.
    """

    def __init__(self, addresses: Sequence[str], *, fallback: Sequence[str] = (), reserve: float = 30,
                 min_step: int = 1000, max_step: int = MOST, timeout: float = 2, token_file: Optional[str] = None,
                 ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None) -> None:
        if not (1 <= min_step <= max_step <= MOST and reserve >= 1 and timeout > 0):
            raise MarchError(Kind.INVALID, f"allowed: 1 <= min_step <= max_step <= {MOST}, reserve >= 1, timeout > 0")
        self._reserve, self._min, self._max, self._began = reserve, min_step, max_step, now()
        self._rooms = Rooms(addresses, fallback, timeout, token_file, (ca, cert, key))
        self._newest = Part()  # the own room's part of the newest layout that an answer named
        self._tags: WeakValueDictionary[str, Tag] = WeakValueDictionary()
        self._used: Set[Tag] = set()  # those to look after
        self._begin()

    def _begin(self) -> None:
        """Has no thread: at first, and in the child of a fork."""
        self._keeper = False  # whether a thread looks after the tags
        self._jobs: Dict[Tag, int] = {}  # of how many IDs a lease is to begin; the first is the next one
        self._workers: Set[int] = set()  # the threads that lease
        self._own = _own()  # of this process: last, as a signal may end this

    def next(self, tag: str) -> int:
        """An ID of a tag. It waits only while none is held, for some seconds at most."""
        return (self._tags.get(tag) or self.tag(tag)).next()

    def tag(self, name: str) -> Tag:
        """A handle to a tag. It asks no room."""
        with _lock():
            return self._tags.get(name) or self._tags.setdefault(name, Tag(self, name))

    def close(self) -> None:
        """Drops all IDs that are held. Calls that wait end, those that ask a room as soon as it has answered."""
        self._rooms.closed = True
        with _lock():
            tags = list(self._used)
        for tag in tags:
            with tag._mine():
                tag._drop(lambda _: True)
                tag._wake()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _want(self, tag: Tag, n: int) -> bool:
        """Has a thread lease n IDs of a tag, if no lease of it is under way; false if no thread can."""
        with _lock():
            self._used.add(tag)
            if not tag._leasing:
                self._jobs.setdefault(tag, n)
            with suppress(RuntimeError):  # no thread can start now
                if not self._keeper:
                    _thread.start_new_thread(self._look, ())  # which no signal interrupts, as one of Thread.start
                if self._jobs and len(self._workers) < LEASES:
                    _thread.start_new_thread(self._work, ())
                    return True
            return bool(self._workers)

    def _work(self) -> None:
        """Leases what tags need, until none needs any. It has threads of its own, so that neither a signal nor a time
        limit of a caller's ends a lease, and no caller waits for more than it needs."""
        me = threading.get_ident()
        try:
            while self._work_once(me):
                pass
        finally:
            with _lock():
                self._workers.discard(me)

    def _work_once(self, me: int) -> bool:
        tag: Optional[Tag] = None
        try:
            with _lock():
                if not self._jobs or len(self._workers - {me}) >= LEASES:
                    self._workers.discard(me)  # with the lock: who adds a job sees that it needs another thread
                    return False
                self._workers.add(me)
                tag = next(iter(self._jobs))
                n, tag._leasing = self._jobs.pop(tag), True
                self._used.add(tag)
            tag._lease(n)
            return True
        finally:
            if tag:
                with tag._mine():
                    tag._leasing = False
                    tag._wake()

    def _look(self) -> None:
        """Looks after the tags in use, as long as there are any."""
        with _lock():
            if self._keeper:
                return
            self._keeper = True
        try:
            while True:
                time.sleep(LOOK)
                with _lock():
                    tags = [] if self._rooms.closed else list(self._used)
                    if not tags:
                        self._keeper = False
                        return
                for tag in tags:
                    tag._tend()
        except Exception:  # no memory, say: the next caller that leases has another one start
            self._keeper = False


class Tag:
    """Issues the IDs of one tag. All methods are safe for concurrent use, and after a fork."""

    def __init__(self, client: Client, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise MarchError(Kind.INVALID, f"tag: {name[:64]!r}; allowed: {NAME}")
        self.name, self._client, self._rooms, self._path = name, client, client._rooms, "/v1/tags/" + name
        self._begin()

    def _begin(self) -> None:
        """Holds nothing: at first, and in the child of a fork, as its parent goes on with what is held."""
        client, self._lock = self._client, threading.Lock()
        self._waiting: List[threading.Lock] = []  # of callers, which are released when the lease ends
        self._segments: List[Segment] = [NONE]  # never empty: next takes of the first
        self._window: Optional[Window] = None  # the last one of a time-ordered tag
        self._timed = self._leasing = False
        self._target, self._ttl = client._min, 0.0  # IDs of a lease, and how long it lasts; 0 before the first
        self._leased = 0  # IDs, but for those that were dropped
        self._looked, self._used = 0, now()  # how many were issued at the last look, and when the last one was
        self._paced = (0, now())  # how many were issued, and when, as the target was set
        self._failed: Optional[MarchError] = None  # why the last lease did
        self._retry_at = self._replace_at = 0.0  # from when on to lease at all, and in place of what is old
        if not client._own[0]:
            client._begin()
        self._own = client._own

    def _mine(self) -> threading.Lock:
        """The lock, of this process: a thread that the fork did not copy may hold the parent's."""
        if not self._own[0]:
            with _lock():
                if not self._own[0]:
                    self._begin()
        return self._lock

    def next(self) -> int:
        """An ID. It waits only while none is held, for some seconds at most."""
        if self._own[0]:
            with self._lock:
                s = self._segments[0]
                n = s.at
                if n < s.end and now() < s.until:
                    s.at = n + 1
                    return n // s.width * s.boundary + s.lower + n % s.width
        return self.next_n(1)[0].start

    def next_n(self, n: int) -> List[range]:
        """n IDs, as ranges."""
        if not 1 <= n <= MOST:
            raise MarchError(Kind.INVALID, f"count: {n}; allowed: 1 to {MOST}")
        runs: List[range] = self._when(n, lambda: [] if self._timed else self._take(n))
        while sum(map(len, runs)) < n:  # the tag is time-ordered
            runs += self._next_timed(n - sum(map(len, runs)))
        return runs

    def _next_timed(self, n: int) -> List[range]:
        """Some of n IDs of a time-ordered tag: of its worker's window, or else of a room."""
        w, at, run = self._when(0, lambda: self._of_window(n))
        if w and run is not None:
            if not run:  # the tick is full
                time.sleep((w.unit - (at - w.epoch) % w.unit) / 1000)
            return [run] if run else []
        some = min(n, BATCH)
        return self._rooms.ask(self._path + "/next", lambda answer: runs_of(answer, some), {"count": str(some)})[0]

    def next_text(self) -> Text:
        """An ID as a text, by the tag's format, of a room."""
        texts = self._rooms.ask(self._path + "/next", lambda answer: [
            Text(text, int(answer["runs"][0]["first"]) if answer["runs"] else None)
            for text in answer.get("texts") or ()], {"count": "1", "texts": True})[0]
        if not texts:
            raise MarchError(Kind.REFUSED, f"tag {self.name}: it has no format, so its IDs have no texts")
        return texts[0]

    def parse_text(self, text: str) -> int:
        """The ID of a text, of a room."""
        try:
            path = f"{self._path}:parse?text={quote(text, safe='')}"
        except UnicodeError as error:
            raise MarchError(Kind.INVALID, f"text: {error}") from error
        return self._rooms.ask(path, lambda answer: int(answer["id"]))[0]

    def warm(self) -> None:
        """Returns when IDs are held."""
        self._when(1, lambda: None)

    def _when(self, n: int, take: Callable[[], Taken]) -> Taken:
        """Takes, as soon as n IDs are held, or the tag is time-ordered: without a window a room issues."""
        give_up = now() + self._rooms.longest
        while not self._rooms.closed:
            with self._mine():
                self._used = at = now()
                self._drop(lambda s: s.until <= at)
                missing = n - self._count()
                if self._timed or missing <= 0:
                    return take()
                if self._failed and at < self._retry_at:
                    raise replace(self._failed)
                if at >= give_up:
                    raise MarchError(Kind.UNAVAILABLE, f"tag {self.name}: no IDs within {self._rooms.longest} s")
                # A condition would take the tag's lock again, which a signal can prevent: "with" then ends another's.
                woken = threading.Lock()
                woken.acquire()
                self._waiting.append(woken)
                wanted = self._client._want(self, max(missing, self._target))
            if wanted:
                woken.acquire(timeout=give_up - at)
            else:
                self._client._work()
        raise MarchError(Kind.CLOSED, "the client was closed")

    # The lock is held in all below, but for _tend and _lease.

    def _wake(self) -> None:
        """Has callers look again at what is held."""
        while self._waiting:
            self._waiting.pop().release()

    def _take(self, n: int) -> List[range]:
        runs: List[range] = []
        for s in self._segments:
            while n and s.at < s.end:
                runs.append(s.take(n))
                n -= len(runs[-1])
        return runs

    def _of_window(self, n: int) -> Tuple[Optional[Window], int, Optional[range]]:
        """The window, the time in ms, and up to n IDs, as Window.take has them."""
        w, at = self._window, time.time_ns() // 1_000_000
        return w, at, w.take(n, at) if w and now() < w.until else None

    def _count(self) -> int:
        return sum(s.end - s.at for s in self._segments)

    def _drop(self, ends: Callable[[Segment], bool], limit: int = 0) -> None:
        """Drops segments, at once, and the IDs from a limit on, if there is one."""
        held = self._count()
        for s in self._segments if limit else ():
            s.cut(limit)
        self._segments = [s for s in self._segments if s.at < s.end and not ends(s)] or [NONE]
        self._leased -= held - self._count()

    def _old(self, s: Union[Segment, Window]) -> bool:
        """Whether to replace what is held: it ends soon, or the room gave up a part of its range."""
        return s.due <= now() or self._client._newest.outdates(s.part)

    def _tend(self) -> None:
        """Drops what has ended, and leases ahead while the tag is in use."""
        with self._mine():
            at, issued = now(), self._leased - self._count()
            if issued != self._looked:
                self._looked, self._used = issued, at
            self._drop(lambda s: s.until <= at)
            if at - self._used >= (self._ttl or UNKNOWN):
                if not self._count() and not self._leasing:
                    self._timed, self._failed = False, None  # the next call leases, and the tag is looked after again
                    self._client._used.discard(self)
            elif self._ttl and at >= self._retry_at:
                if (not self._window or self._old(self._window)) if self._timed else (
                        self._count() < self._target or at >= self._replace_at and any(map(self._old, self._segments))):
                    self._client._want(self, self._target)

    def _lease(self, n: int) -> None:
        """Leases n IDs, or a window, or notes why not. While leases fail each is one try."""
        nonce, n = secrets.token_hex(16), min(n, MOST)
        window: Dict[str, Any] = {"nonce": nonce, "age": f"{now() - self._client._began:.3f}s"}
        with self._mine():
            patience = 0 if self._failed and self._failed.temporary else PATIENCE
            if self._window:
                window["held"] = {"worker": str(self._window.worker), "nonce": self._window.nonce}
        try:
            answer, url, sent = self._rooms.ask(
                self._path + "/lease", dict[str, Any], {"count": str(n), "window": window}, patience)
            with self._mine():
                if not self._rooms.closed:  # close drops what those tags hold that it finds
                    self._accept(answer, url, sent, n, nonce)
        except Exception as error:  # whatever it is, callers go on
            with self._mine():
                self._fail(error if isinstance(error, MarchError) else MarchError(
                    Kind.INTERNAL, f"tag {self.name}: an answer makes no sense: {error!r}"))

    def _fail(self, error: MarchError) -> None:
        wait = SEEK if error.no_window else random.uniform(0.5, 0.75) if (
            error.kind is Kind.UNAVAILABLE) else error.retry_after
        self._failed, self._retry_at = replace(error), now() + wait  # without the frames of its causes
        if error.no_window:
            self._timed, self._ttl = True, self._ttl or 6 * SEEK
        self._drop(lambda _: error.no_window, error.limit)  # what is dropped is of a counter that is no more

    def _accept(self, answer: Dict[str, Any], url: str, sent: float, n: int, nonce: str) -> None:
        """Adds what an answer leases. Its error says why it cannot."""
        client, at = self._client, now()
        if url not in self._rooms.fallback:
            with _lock():  # an instance may lease under a layout that it does not report yet
                serves = max(part_of(answer["serves"]), part_of(answer.get("segment")))
                client._newest = max(client._newest, serves)
            if serves.version < client._newest.version:
                self._rooms.lagging[url] = at  # but what it leases is valid
        timed, old = bool(answer["time"]), False
        if timed:
            w = self._window = Window(answer["time"], sent, nonce, client._newest.version, self._window)
            if (time.time() - (at - sent)) * 1000 - w.now_ms > AHEAD:
                w.until = 0.0  # rooms issue each ID
            self._ttl = w.ttl
            self._drop(lambda _: True)  # of a counter of this name that is no more
        else:
            s, limit = Segment(answer["segment"], n, sent, seconds(answer["ttl"])), int(answer["limit"]) or 2**63
            self._drop(lambda _: False, limit)
            s.cut(limit)
            if s.until <= at:
                raise MarchError(Kind.UNAVAILABLE, f"room at {url}: its answer took longer than {s.ttl} s")
            if s.at == s.end:
                raise MarchError(Kind.EXHAUSTED, f"tag {self.name}: no ID is left below its limit")
            self._ttl, old = s.ttl or math.inf, self._old(s)
            self._drop(lambda each: not old and self._old(each))
            self._pace(at)
            self._segments.append(s)
            self._leased += s.end - s.at
        self._timed, self._failed, self._retry_at, self._replace_at = timed, None, 0.0, at + SEEK if old else 0.0

    def _pace(self, at: float) -> None:
        """Sets the target by the rate since it was last set."""
        issued = self._leased - self._count()
        taken, took = issued - self._paced[0], at - self._paced[1]
        if taken >= self._target / 8 or took >= 10:  # enough to tell the rate
            wanted = taken / max(took, 0.001) * self._client._reserve * 8 / 7
            wanted = min(max(wanted, self._target / 2, self._client._min), self._target * 2, self._client._max)
            self._target, self._paced = int(wanted), (issued, at)


_locks: Dict[int, threading.Lock] = {}  # by process


def _lock() -> threading.Lock:
    """The lock of this process for what it begins."""
    return _locks.setdefault(os.getpid(), threading.Lock())


class _Pid:
    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, _: int) -> bool:
        return os.getpid() == self._pid


def _own() -> Any:
    """What has a true value at 0 in this process, but in no child of a fork, even of one in C that runs no hook of
    Python's. Linux clears the page in a child, and to read it costs less than a system call."""
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # before Linux 4.14
            page.madvise(18)  # MADV_WIPEONFORK
            try:
                page.madvise(-1)  # an emulator takes it that does nothing for any advice
            except OSError:
                page[0] = 1
                return page
    return _Pid()

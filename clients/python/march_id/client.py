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

from .ids import Part, Segment, Window, part_of, runs_of, seconds
from .rooms import AVOID, PATIENCE, Kind, MarchError, Rooms, now

LOOK = 0.25  # seconds between two looks at the tags in use
SEEK = 10.0  # seconds until the next try where no worker was free, or what was leased is to be replaced already
MOST = 1_000_000_000  # IDs of a lease
READY = 250  # IDs that callers take without a lock
BATCH = 1000  # time-ordered IDs that a room issues at once
AHEAD = 10_000  # ms by which the clock may be ahead of a room's
REFILLS = 16  # that are under way at once
UNKNOWN = 60.0  # seconds for which a name is in use of which a room has leased nothing
STUCK = 5.0  # seconds after which a lock's holder is no more: a signal's handler ended it
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
        self._parts = [Part()]  # the own room's, of the layouts that answers named
        self._tags: Dict[str, Tag] = {}
        self._used: Set[Tag] = set()  # those to look after
        self._keepers: Dict[int, int] = {}  # the thread that looks after them, by process
        self._own = _own()

    def next(self, tag: str) -> int:
        """An ID of a tag. It waits only while none is held, for some seconds at most."""
        return (self._tags.get(tag) or self.tag(tag)).next()

    def tag(self, name: str) -> Tag:
        """A handle to a tag. It asks no room."""
        tag = self._tags.get(name) or self._tags.setdefault(name, Tag(self, name))
        self._used.add(tag)
        return tag

    def close(self) -> None:
        """Drops all IDs that are held. Calls that wait end, those that ask a room as soon as it has answered."""
        self._rooms.closed = True
        for tag in list(self._used):
            with tag._mine() as held:
                held.drop(lambda _: True)
                held.wake()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> None:
        """Looks after the tags in use, in a thread of its own."""
        me, process, refills = threading.get_ident(), os.getpid(), set[Tag]()
        if self._keepers.setdefault(process, me) != me:
            return
        try:
            while not self._rooms.closed:
                for tag in list(self._used):
                    if tag._tend() and tag not in refills:
                        while len(refills) >= REFILLS:
                            time.sleep(0.01)
                        refills.add(tag)
                        _thread.start_new_thread(tag._lease, (0, refills))
                time.sleep(LOOK)
        except Exception:  # no memory or thread, say: the next caller that leases has another one start
            pass
        finally:
            self._keepers.pop(process)


class Tag:
    """Issues the IDs of one tag. All methods are safe for concurrent use, and after a fork."""

    def __init__(self, client: Client, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise MarchError(Kind.INVALID, f"tag: {name[:64]!r}; allowed: {NAME}")
        self.name, self._client, self._rooms, self._path = name, client, client._rooms, "/v1/tags/" + name
        self._held = _Held(client)

    @property
    def held(self) -> int:
        """How many IDs are held."""
        with self._mine() as held:
            held.drop(lambda s: s.until <= now())
            return held.count() + len(held.ready[0])

    def next(self) -> int:
        """An ID. It waits only while none is held, for some seconds at most."""
        ids, until, own = self._held.ready
        if own[0] and now() < until:
            try:
                return ids.pop()
            except IndexError:
                pass
        id = self._when(1, _Held.one)
        return self.next_n(1)[0].start if id < 0 else id

    def next_n(self, n: int) -> List[range]:
        """n IDs, as ranges."""
        if not 1 <= n <= MOST:
            raise MarchError(Kind.INVALID, f"count: {n}; allowed: 1 to {MOST}")
        runs: List[range] = self._when(n, lambda held: [] if held.timed else held.take(n))
        while sum(map(len, runs)) < n:  # the tag is time-ordered
            runs += self._next_timed(n - sum(map(len, runs)))
        return runs

    def _next_timed(self, n: int) -> List[range]:
        """Some of n IDs of a time-ordered tag: of its worker's window, or else of a room."""
        w, at, run = self._when(0, lambda held: held.of_window(n))
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
        self._when(1, lambda held: held.timed or held.count() > 0 or None)

    def _mine(self) -> _Held:
        """What this process holds, locked. In the child of a fork that is nothing, as its parent goes on with the
        rest. Where the lock stays locked its holder was ended by a signal, and what it guards is a gap."""
        last: Optional[_Held] = None
        while True:
            held = self._held
            if held is not last:
                last, since = held, now()
            if held.own[0] and held.lock.acquire(False):  # a signal that came while it waited would leave it locked
                if held is self._held:
                    return held
                held.lock.release()
            elif not held.own[0] or now() - since > STUCK:
                self._held = _Held(self._client)
            else:
                time.sleep(0.0005)

    def _when(self, n: int, take: Callable[[_Held], Optional[Taken]]) -> Taken:
        """What is taken, as soon as it is there: of n IDs, which threads of the client lease."""
        give_up = now() + self._rooms.longest
        while not self._rooms.closed:
            with self._mine() as held:
                held.used = at = now()
                held.drop(lambda s: s.until <= at)
                taken = take(held)
                if taken is not None:
                    return taken
                if held.failed and at < held.retry_at:
                    raise replace(held.failed)
                if at >= give_up:
                    raise MarchError(Kind.UNAVAILABLE, f"tag {self.name}: no IDs within {self._rooms.longest} s")
                woken = threading.Lock()
                woken.acquire()
                held.waiting.append(woken)
                leases, missing = held.leasing, max(n - held.count(), held.target)
            try:  # of a caller's own thread a signal may end the call: it leases nothing
                if not leases:
                    _thread.start_new_thread(self._lease, (missing, set()))
                if os.getpid() not in self._client._keepers:
                    _thread.start_new_thread(self._client._look, ())
            except RuntimeError as error:  # no thread can start now
                raise MarchError(Kind.UNAVAILABLE, f"tag {self.name}: {error}") from error
            woken.acquire(timeout=give_up - at)
        raise MarchError(Kind.CLOSED, "the client was closed")

    def _tend(self) -> bool:
        """Drops what has ended. Returns whether to lease ahead: the tag is in use, and needs it."""
        with self._mine() as held:
            at, issued = now(), held.leased - held.count() - len(held.ready[0])
            if issued != held.looked:
                held.looked, held.used = issued, at
            held.drop(lambda s: s.until <= at)
            if at - held.used < (held.ttl or UNKNOWN):
                return held.needs()
            if not held.segments and not held.ready[0] and not held.leasing:
                held.timed, held.failed = False, None  # the next call leases, and the tag is looked after again
                self._client._used.discard(self)
                if self._client._tags.get(self.name) is self:
                    self._client._tags.pop(self.name)
            return False

    def _lease(self, n: int, refills: Set[Tag]) -> None:
        """Leases n IDs, or those to lease ahead if it is 0, or a window, or notes why not. While leases fail each is
        one try."""
        client, nonce = self._client, secrets.token_hex(16)
        window: Dict[str, Any] = {"nonce": nonce, "age": f"{now() - client._began:.3f}s"}
        client._used.add(self)
        with self._mine() as held:
            begins = not held.leasing and (bool(held.waiting) or held.needs())
            held.leasing, n = held.leasing or begins, min(n or held.target, MOST)
            patience = 0 if held.failed and held.failed.temporary and now() < held.retry_at + AVOID else PATIENCE
            if held.window:
                window["held"] = {"worker": str(held.window.worker), "nonce": held.window.nonce}
        try:
            if begins:
                answer, url, sent = self._rooms.ask(
                    self._path + "/lease", dict[str, Any], {"count": str(n), "window": window}, patience)
                with self._mine() as held:
                    if not self._rooms.closed:  # close drops what those tags hold that it finds
                        held.accept(answer, url, sent, n, nonce)
        except Exception as error:  # whatever it is, callers go on
            with self._mine() as held:
                held.fail(error if isinstance(error, MarchError) else MarchError(
                    Kind.INTERNAL, f"tag {self.name}: an answer makes no sense: {error!r}"))
        finally:
            refills.discard(self)
            if begins:
                with self._mine() as held:
                    held.leasing = False
                    held.wake()


class _Held:
    """What a process holds of a tag. All but ready is its lock's."""

    def __init__(self, client: Client) -> None:
        if not client._own[0]:
            client._own = _own()
        self.client, self.own, self.lock = client, client._own, threading.Lock()
        # IDs that callers take by one atomic operation, the last one first; until when they may; and in which process.
        self.ready: Tuple[List[int], float, Any] = ([], 0.0, self.own)
        self.segments: List[Segment] = []
        self.source: Optional[Segment] = None  # of what is ready
        self.window: Optional[Window] = None  # the last one of a time-ordered tag
        self.waiting: List[threading.Lock] = []  # of callers, which are released when the lease ends
        self.timed = self.leasing = False
        self.target, self.ttl = client._min, 0.0  # IDs of a lease, and how long it lasts; 0 before the first
        self.leased = 0  # IDs, but for those that were dropped
        self.looked, self.used = 0, now()  # how many were issued at the last look, and when the last one was
        self.paced = (0, now())  # how many were issued, and when, as the target was set
        self.failed: Optional[MarchError] = None  # why the last lease did
        self.retry_at = self.replace_at = 0.0  # from when on to lease at all, and in place of what is old

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def wake(self) -> None:
        """Has callers look again at what is held."""
        while self.waiting:
            self.waiting.pop().release()

    def count(self) -> int:
        return sum(s.end - s.at for s in self.segments)

    def one(self) -> Optional[int]:
        """An ID, after which others are ready; -1 of a time-ordered tag."""
        try:
            return self.ready[0].pop()
        except IndexError:
            if self.timed or not self.segments:
                return -1 if self.timed else None
        s, ids = self.segments[0], list[int]()
        while s.at < s.end and len(ids) < READY:
            ids += s.take(READY - len(ids))
        id = ids.pop(0)
        self.source, self.ready = s, (ids[::-1], s.until, self.own)
        return id

    def take(self, n: int) -> Optional[List[range]]:
        """n IDs of the segments, or none."""
        runs: List[range] = []
        for s in self.segments if self.count() >= n else ():
            while n and s.at < s.end:
                runs.append(s.take(n))
                n -= len(runs[-1])
        return runs or None

    def of_window(self, n: int) -> Tuple[Optional[Window], int, Optional[range]]:
        """The window, the time in ms, and up to n IDs, as Window.take has them; without a window a room issues."""
        w, at = self.window if self.timed else None, time.time_ns() // 1_000_000
        return w, at, w.take(n, at) if w and now() < w.until else None

    def drop(self, ends: Callable[[Segment], bool], limit: int = 0) -> None:
        """Drops segments, at once, and the IDs from a limit on, if there is one."""
        count, ids = self.count(), self.ready[0]
        for s in self.segments if limit else ():
            s.cut(limit)
        self.segments = [s for s in self.segments if s.at < s.end and not ends(s)]
        if self.source and (ends(self.source) or limit and ids[:1] >= [limit]):
            count += len(ids)
            ids.clear()
        self.leased -= count - self.count()

    def old(self, s: Union[Segment, Window]) -> bool:
        """Whether to replace what is held: it ends soon, or the room gave up a part of its range."""
        return s.due <= now() or max(self.client._parts).outdates(s.part)

    def needs(self) -> bool:
        """Whether to lease ahead now."""
        if not self.ttl or self.leasing or now() < self.retry_at:
            return False
        if self.timed:
            return not self.window or self.old(self.window)
        return self.count() < self.target or now() >= self.replace_at and any(map(self.old, self.segments))

    def fail(self, error: MarchError) -> None:
        wait = SEEK if error.no_window else random.uniform(0.5, 0.75) if (
            error.kind is Kind.UNAVAILABLE) else error.retry_after
        self.failed, self.retry_at = replace(error), now() + wait  # without the frames of its causes
        if error.no_window:
            self.timed, self.ttl = True, self.ttl or 6 * SEEK
        self.drop(lambda _: error.no_window, error.limit)  # what is dropped is of a counter that is no more

    def accept(self, answer: Dict[str, Any], url: str, sent: float, n: int, nonce: str) -> None:
        """Adds what an answer leases. Its error says why it cannot."""
        rooms, parts, at = self.client._rooms, self.client._parts, now()
        if url not in rooms.fallback:  # an instance may lease under a layout that it does not report yet
            serves = max(part_of(answer["serves"]), part_of(answer.get("segment")))
            if serves.version < max(parts).version:
                rooms.lagging[url] = at  # but what it leases is valid
            elif serves > max(parts):
                parts.append(serves)
        timed, old = bool(answer["time"]), False
        if timed:
            w = self.window = Window(answer["time"], sent, nonce, max(parts).version, self.window)
            if (time.time() - (at - sent)) * 1000 - w.now_ms > AHEAD:
                w.until = 0.0  # rooms issue each ID
            self.ttl = w.ttl
            self.drop(lambda _: True)  # of a counter of this name that is no more
        else:
            s, limit = Segment(answer["segment"], n, sent, seconds(answer["ttl"])), int(answer["limit"]) or 2**63
            self.drop(lambda _: False, limit)
            s.cut(limit)
            if s.until <= at:
                raise MarchError(Kind.UNAVAILABLE, f"room at {url}: its answer took longer than {s.ttl} s")
            if s.at == s.end:
                raise MarchError(Kind.EXHAUSTED, f"room at {url}: no ID is left below the tag's limit")
            self.ttl, old = s.ttl or math.inf, self.old(s)
            self.drop(lambda each: not old and self.old(each))
            self.pace(at)
            self.segments.append(s)
            self.leased += s.end - s.at
        self.timed, self.failed, self.retry_at, self.replace_at = timed, None, 0.0, at + SEEK if old else 0.0

    def pace(self, at: float) -> None:
        """Sets the target by the rate since it was last set."""
        issued = self.leased - self.count()
        taken, took = issued - self.paced[0], at - self.paced[1]
        if taken >= self.target / 8 or took >= 10:  # enough to tell the rate
            wanted = taken / max(took, 0.001) * self.client._reserve * 8 / 7
            wanted = min(max(wanted, self.target / 2, self.client._min), self.target * 2, self.client._max)
            self.target, self.paced = int(wanted), (issued, at)


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

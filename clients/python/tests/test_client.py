"""The client with a room of the test's own."""

import ctypes
import json
import mmap
import os
import pickle
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Set
from unittest import mock

from march_id import Client, Kind, MarchError, client
from march_id.ids import Window
from march_id.rooms import error_of, together

# A program that forks, in a process of its own: of other threads none may hold the interpreter's lock then.
FORK = """
import ctypes, json, os, signal, sys, time
from march_id import Client, client
client._own = client.{own}
ids = Client([sys.argv[1]])
order = ids.tag("order")
mine = [order.next() for _ in range(10)]
with order._mine():
    time.sleep(0.05)
    child = {fork}()
    if child == 0:
        mine = [{first}]
        mine += [order.next() for _ in range(199)]
        ids.close()
        os.write(1, json.dumps(mine).encode() + bytes([10]))
        os._exit(0)
for _ in range(300):
    if os.waitpid(child, os.WNOHANG)[0]:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
    os._exit(3)
mine += [order.next() for _ in range(200)]
os.write(1, json.dumps(mine).encode() + bytes([10]))
os._exit(0)
"""


class Forgiving(mmap.mmap):
    """A page of an emulator that takes any advice, and does nothing."""

    def madvise(self, *_: int) -> None:
        pass


class Room(BaseHTTPRequestHandler):
    """Leases IDs from 1 on, with what a test changes in the answers. Of a time-ordered tag it issues up to most at
    once, if faults has no reason why not."""

    lock, last, changes = threading.Lock(), 0, {}  # type: ignore[var-annotated]
    most: int = 0
    faults: List[str] = []
    asks: List[int] = []
    drips = b""
    takes = 0.0
    held: List[Any] = []
    issued: Any = None  # what it answers in place of IDs

    def do_POST(self) -> None:
        if self.path.endswith("/next"):
            return self.next()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(Room.takes)
        asked = int(body["count"])
        Room.held.append(body["window"].get("held"))
        part: Dict[str, Any] = {"version": "1", "boundary": "1", "range": {"lower": "0", "upper": "1"}}
        with Room.lock:
            first, Room.last = Room.last + 1, Room.last + asked
        answer = {"segment": {**part, "first": str(first), "count": str(asked)}, "ttl": "600s", "serves": part,
                  "limit": "9223372036854775807", "time": None, **Room.changes}
        self.answer(answer)

    def next(self) -> None:
        asked = int(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["count"])
        Room.asks.append(asked)
        if asked > Room.most:
            self.answer({"reason": "invalid"})
        elif Room.faults:
            self.answer({"reason": Room.faults.pop()})
        else:
            Room.last += asked
            run = {"first": str(Room.last - asked + 1), "count": str(asked)}
            self.answer({"runs": [run], "texts": ["a"]} if Room.issued is None else Room.issued)

    def answer(self, answer: Dict[str, Any]) -> None:
        if Room.drips:
            return self.drip()
        self.send_response(200 if "reason" not in answer else 503)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def drip(self) -> None:
        """Answers with a byte each tenth of a second, without an end, in the headers or after them."""
        try:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n" + Room.drips)
            while Room.drips:
                self.wfile.write(b"x")
                time.sleep(0.1)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


class Clients(unittest.TestCase):
    def setUp(self) -> None:
        Room.faults, Room.asks, Room.held, Room.issued = [], [], [], None
        Room.changes, server = {}, ThreadingHTTPServer(("127.0.0.1", 0), Room)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was closed reads nothing
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.ids = Client([self.url])
        self.addCleanup(self.ids.close)

    def test_threads(self) -> None:
        taken: Set[int] = set()

        def take() -> None:
            mine = [self.ids.next("order") for _ in range(5_000)]
            mine += [n for run in self.ids.tag("order").next_n(5000) for n in run]
            with Room.lock:
                self.assertTrue(taken.isdisjoint(mine))
                taken.update(mine)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(taken), 40_000)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_fork(self) -> None:
        """A child begins anew, even of a fork in C, as uWSGI's, which runs no hook of Python's, with a lock held."""
        with mock.patch.object(mmap, "mmap", Forgiving):
            self.assertIsInstance(client._own(), client._Pid)
        for fork, own, first in (
                ("os.fork", "_own", "order.next()"), ("ctypes.PyDLL(None).fork", "_Pid", "order.next()"),
                ("ctypes.PyDLL(None).fork", "_own", "order.next()"),
                ("ctypes.PyDLL(None).fork", "_own", "order.next_n(1)[0][0]"),
                ("ctypes.PyDLL(None).fork", "_own", "order.warm() or order.next()"),
                ("ctypes.PyDLL(None).fork", "_own", "ids.next('other')")):
            program = FORK.format(fork=fork, own=own, first=first)
            for _ in range(5):  # a child hangs in the interpreter if a thread waited for its lock at a fork in C
                done = subprocess.run([sys.executable, "-c", program, self.url], stdout=subprocess.PIPE)
                if done.returncode != 3:
                    break
            done.check_returncode()
            child, mine = map(json.loads, done.stdout.splitlines())
            self.assertEqual((len(child), set(child) & set(mine)), (200, set()), (fork, own, first))

    def test_exit(self) -> None:
        """A client that is not closed does not keep its process."""
        program = "import sys, march_id; march_id.Client([sys.argv[1]]).next('order')"
        subprocess.run([sys.executable, "-c", program, self.url], check=True)

    def test_hangs(self) -> None:
        """An answer that does not end does not hold a call up, however it comes."""
        self.addCleanup(setattr, Room, "drips", b"")
        for Room.drips in (b"x", b"\r\n", b"Content-Length: 10000\r\n\r\n"):
            with Client([self.url], timeout=0.3) as ids:
                began = time.monotonic()
                self.assertIn("timed out", str(self.fails(Kind.UNAVAILABLE, lambda: ids.tag("order").next_text())))
                self.assertLess(time.monotonic() - began, 20)  # the drip has no end

    def test_addresses(self) -> None:
        """A name of several addresses that do not answer takes no longer than one."""
        for timeout, count, limits in ((8, 8, [1] * 8), (2, 20, [0.5] * 4)):
            made, at = [], [0.0]
            where = [(2, 1, 6, "", (f"127.0.0.{k // 2}", 1)) for k in range(2 * count)]

            def make(_: object, limit: float) -> None:
                made.append(limit)
                at[0] += limit
                raise OSError("away")

            with mock.patch("socket.getaddrinfo", return_value=where), mock.patch("socket.create_connection", make), \
                    mock.patch("march_id.rooms.now", lambda: at[0]), Client([self.url], timeout=timeout) as ids:
                self.fails(Kind.UNAVAILABLE, lambda: ids._rooms.ask("/", dict, None, 0))
            self.assertEqual(made, limits)

    def test_other_address(self) -> None:
        """Where TLS fails at one of a name's addresses the next one is tried."""
        context = mock.Mock()
        secured = mock.Mock()
        context.wrap_socket.side_effect = [ssl.SSLError("no TLS"), secured]
        where = [(2, 1, 6, "", (f"127.0.0.{k}", 1)) for k in (1, 2)]
        with mock.patch("socket.getaddrinfo", return_value=where), mock.patch("socket.create_connection"), \
                mock.patch.object(self.ids._rooms, "_context", return_value=context):
            got: object = self.ids._rooms._connect("room", 1, "https", client.now() + 60)
        self.assertIs(got, secured)

    def test_slow(self) -> None:
        """A call waits for an answer within the timeout, though that is longer than it would try again."""
        self.addCleanup(setattr, Room, "takes", 0.0)
        Room.takes = 3.5
        with Client([self.url], timeout=60) as ids:
            self.assertGreater(ids.next("order"), 0)

    def of_child(self, take: Callable[[], List[Any]]) -> Set[Any]:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(take()).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as out:
            others = set(json.loads(out.read()))
        os.waitpid(child, 0)
        return others

    def fails(self, kind: Kind, call: Callable[[], Any]) -> MarchError:
        with self.assertRaises(MarchError) as failed:
            call()
        self.assertIs(failed.exception.kind, kind)
        return failed.exception

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_handle(self) -> None:
        """A handle from before its tag exists ends at a fork and with the client, as all others do."""
        order = self.ids.tag("order")
        Room.changes = {"reason": "not_found"}
        errors = [self.fails(Kind.NOT_FOUND, order.next) for _ in range(2)]
        self.assertIsNot(*errors)  # threads would share its traceback
        Room.changes = {}
        time.sleep(1.1)
        mine = {order.next()}
        others = self.of_child(lambda: [order.next() for _ in range(5)])
        self.assertFalse(others & (mine | {order.next() for _ in range(5)}))
        self.ids.close()
        self.fails(Kind.CLOSED, order.next)

    def test_forgotten(self) -> None:
        """Names that a room refuses are forgotten, but a handle goes on; no tag is that is leased."""
        unknown = mock.patch.object(client, "UNKNOWN", 0.1)
        unknown.start()
        self.addCleanup(unknown.stop)
        for kind in (Kind.NOT_FOUND, Kind.DENIED, Kind.INVALID):
            Room.changes = {"reason": kind.value}
            self.fails(kind, lambda: self.ids.next("none"))
            self.forgets("none")
        for name in ("", "Order", "order/1", "order\n", "-order", "o" * 64):
            self.fails(Kind.INVALID, lambda: self.ids.next(name))
            self.fails(Kind.INVALID, lambda: self.ids.tag(name))
        order = self.ids.tag("order")
        self.fails(Kind.INVALID, order.next)
        self.assertIs(self.ids.tag("order"), order)
        self.forgets("order")
        Room.changes = {}
        self.assertNotEqual(order.next(), self.ids.next("order"))
        self.assertEqual(len({order, self.ids.tag("order")} & self.ids._used), 2)
        time.sleep(0.5)
        self.assertIn("order", self.ids._tags)

    def forgets(self, name: str) -> None:
        """Returns when the client has forgotten a tag."""
        while name in self.ids._tags:
            time.sleep(0.01)

    def test_errors(self) -> None:
        self.assertEqual(error_of(429, b"", "86400").retry_after, 30)
        away, none = MarchError(Kind.UNAVAILABLE, "away", 2), MarchError(Kind.REFUSED, "none", no_window=True)
        e = pickle.loads(pickle.dumps(together([none, away])))  # of a worker process, say
        self.assertEqual((e.kind, str(e), e.retry_after, e.no_window), (Kind.UNAVAILABLE, "none; away", 2, True))

    def test_senseless(self) -> None:
        """An answer of another program is an error, and neither too few IDs nor a call without an end."""
        Room.changes, Room.most = {"reason": "too_many", "metadata": {"window": "none"}}, 10
        event = self.ids.tag("event")
        self.assertEqual(sum(map(len, event.next_n(5))), 5)
        self.assertLess(self.ids._rooms.failed[self.url], 0)  # it has no worker, but is not avoided
        run = {"first": "1", "count": "4"}
        for Room.issued in ([], {}, {"runs": []}, {"runs": [run]}, {"runs": [run] * 2}, {"runs": 5},
                            {"runs": [{**run, "count": "1e9"}]}, {"runs": [run, {**run, "count": "-9"}]}):
            self.fails(Kind.INTERNAL, lambda: event.next_n(5))
        self.assertGreater(self.ids._rooms.failed[self.url], 0)  # others are asked first
        for Room.issued in ([], {"texts": ["a"]}, {"texts": 5}, {"texts": ["a"], "runs": [{}]}):
            self.fails(Kind.INTERNAL, event.next_text)

    def test_loopback(self) -> None:
        """A token goes to this machine alone where there is no TLS."""
        for host, kind in (("127.0.0.1", Kind.UNAVAILABLE), ("127.255.1.20", Kind.UNAVAILABLE),
                           ("127.0.0.1.nip.io", Kind.UNAUTHENTICATED), ("127.example.net", Kind.UNAUTHENTICATED),
                           ("127.0.0.256", Kind.UNAUTHENTICATED), ("localhost.net", Kind.UNAUTHENTICATED)):
            with tempfile.NamedTemporaryFile() as token, Client([f"http://{host}:1"], token_file=token.name) as ids:
                token.write(b"secret")
                token.flush()
                self.fails(kind, lambda: ids._rooms.ask("/", dict, None, 0))
        for address in ("http://a:70000", "a:1", "http://a/b"):
            self.fails(Kind.INVALID, lambda: Client([address]))

    def test_no_thread(self) -> None:
        """Where no thread can start, what is held is issued, and then a call is an error that passes."""
        order = self.ids.tag("order")
        with mock.patch("_thread.start_new_thread", side_effect=RuntimeError("can't start new thread")):
            self.assertIn("new thread", str(self.fails(Kind.UNAVAILABLE, order.next)))
        self.assertEqual(sum(map(len, order.next_n(5000))), 5000)
        while not self.ids._keepers:  # it was started
            time.sleep(0.01)

    def test_lock_left(self) -> None:
        """A lock that a signal's handler left locked holds up no call for long, and no ID comes twice."""
        order = self.ids.tag("order")
        taken = [order.next() for _ in range(10)]
        left = order._mine()  # as Python 3.14 does where a handler raises at the beginning of "with"
        with mock.patch.object(client, "STUCK", 0.1):
            taken += [order.next() for _ in range(2000)]
            self.assertEqual(sum(map(len, order.next_n(1000))), 1000)
        taken += [id for run in left.take(left.count()) or () for id in run]  # a slow holder, and no dead one
        self.assertEqual(len(taken), len(set(taken)))

    def test_stale(self) -> None:
        """A failure of long ago does not leave a call one try."""
        Room.changes, order, rooms = {"reason": "unavailable"}, self.ids.tag("order"), self.ids._rooms
        self.fails(Kind.UNAVAILABLE, order.next)
        Room.changes = {}
        with order._mine() as held:
            held.retry_at -= 6
        away = MarchError(Kind.UNAVAILABLE, "away")
        with mock.patch.object(rooms, "_call", wraps=rooms._call, side_effect=[away, away, mock.DEFAULT]):
            self.assertGreater(order.next(), 0)

    def test_slow_start(self) -> None:
        """A tag whose thread begins late has no second one started at the next look."""
        tag = self.ids.tag("order")
        self.ids._keepers[os.getpid()] = 0
        tag.next_n(10)
        self.ids._keepers.clear()
        looks = mock.Mock(wraps=tag._tend)
        with mock.patch("_thread.start_new_thread") as start, mock.patch.object(client, "LOOK", 0.001), \
                mock.patch.object(tag, "_tend", looks):
            keeper = threading.Thread(target=self.ids._look, daemon=True)
            keeper.start()
            while looks.call_count < 5 and keeper.is_alive():
                time.sleep(0.001)
            self.ids.close()
            keeper.join()
        self.assertGreaterEqual(looks.call_count, 5)
        self.assertEqual(start.call_count, 1)

    @unittest.skipUnless(hasattr(signal, "setitimer"), "no timer")
    def test_interrupts(self) -> None:
        """A signal whose handler raises leaves the lock to those that have it: no ID is issued twice."""
        def late(*_: object) -> None:
            raise TimeoutError

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, late))
        ids = Client([self.url], max_step=1000, timeout=60)
        self.addCleanup(ids.close)
        order, stop, taken = ids.tag("order"), threading.Event(), [0]

        def take() -> None:
            mine = []
            while not stop.is_set():
                mine.append(order.next())
            taken.extend(mine)

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        stuck = mock.patch.object(client, "STUCK", 0.1)  # where a signal leaves the lock
        stuck.start()
        self.addCleanup(stuck.stop)
        for _ in range(500):
            with suppress(TimeoutError):
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    taken.append(order.next_n(300)[0].start)
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(len(taken), len(set(taken)))

    @unittest.skipUnless(hasattr(signal, "setitimer"), "no timer")
    def test_time_limit(self) -> None:
        """A caller's own time limit reaches the caller, and nobody else."""
        def late(*_: object) -> None:
            raise TimeoutError("the caller's")

        self.addCleanup(setattr, Room, "takes", 0.0)
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, late))
        self.ids._rooms._timeout = self.ids._rooms.longest = 60
        Room.takes, order = 1.0, self.ids.tag("order")
        with self.assertRaisesRegex(TimeoutError, "the caller's"):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            order.next()
        self.assertEqual((order.next(), len(Room.held)), (Room.last - 999, 1))  # of the lease that went on
        self.assertLess(self.ids._rooms.failed[self.url], 0)

    def test_hanging_tags(self) -> None:
        """Leases that hang hold up no other tag, and no caller without an end; what is leased ahead is bounded."""
        room, hang, hangs = self.ids._rooms.ask, threading.Event(), [0]
        self.addCleanup(hang.set)

        def ask(path: str, *rest: Any) -> Any:
            if "order" in path:
                return room(path, *rest)
            hangs[0] += 1
            return hang.wait()

        tags = [self.ids.tag(f"tag{k}") for k in range(client.REFILLS + 4)]
        for tag in tags:
            tag.warm()
        with mock.patch.object(self.ids._rooms, "ask", ask), mock.patch.object(self.ids._rooms, "longest", 0.1):
            for tag in tags:
                tag.next_n(10)
            while hangs[0] < client.REFILLS:
                time.sleep(0.01)
            time.sleep(2 * client.LOOK)
            self.assertEqual(hangs[0], client.REFILLS)
            for k in range(client.REFILLS):
                self.fails(Kind.UNAVAILABLE, self.ids.tag(f"hangs{k}").next)
            self.ids._rooms.longest = 600
            self.assertGreater(self.ids.next("order"), 0)
            hang.set()

    def test_many_tags(self) -> None:
        """All tags that need it are leased ahead at a look, not as many as may be under way at once."""
        tags = [self.ids.tag(f"tag{k}") for k in range(3 * client.REFILLS)]
        self.ids._keepers[os.getpid()] = 0  # so that there is one look
        for tag in tags:
            tag.next_n(10)
        self.ids._keepers.clear()
        with mock.patch.object(client, "LOOK", 1000):
            threading.Thread(target=self.ids._look, daemon=True).start()
            while any(tag.held < 1000 for tag in tags):
                time.sleep(0.01)

    def test_lagging(self) -> None:
        """An instance that lags behind is asked after the room's others, but before those of other rooms."""
        asked: List[str] = []
        with Client(["http://a:1", "http://b:1"], fallback=["http://c:1"]) as ids:
            ids._rooms.lagging["http://a:1"] = client.now()
            with mock.patch.object(ids._rooms, "_call", lambda url, *_: asked.append(url) or self.away()):
                self.fails(Kind.UNAVAILABLE, lambda: ids._rooms.ask("/", dict, None, 0))
        self.assertEqual(asked, ["http://b:1", "http://a:1", "http://c:1"])

    def away(self) -> None:
        raise MarchError(Kind.UNAVAILABLE, "away")

    def test_lags(self) -> None:
        """A room that lags behind leases what callers need at once, and replaces nothing for a while."""
        layout = {"version": "2", "boundary": "2", "range": {"lower": "0", "upper": "1"}}
        Room.changes, order = {"serves": layout}, self.ids.tag("order")
        with mock.patch.object(client, "SEEK", 1000), mock.patch.object(client, "LOOK", 1000):
            for _ in range(20):
                order.next_n(5000)
            while order.held < order._held.target:  # which a lease may raise
                order._lease(0, set())
            self.assertFalse(order._tend())  # it would replace all
            order.next_n(order.held - order._held.target + 1)
            self.assertTrue(order._tend())  # but it refills

    def test_room_issues(self) -> None:
        """Without a window a room issues, in batches."""
        Room.changes = {"reason": "refused", "metadata": {"window": "none"}}
        Room.most, Room.faults = 2000, ["unavailable", "unavailable"]
        self.assertEqual(sum(map(len, self.ids.tag("event").next_n(5000))), 5000)
        self.assertEqual(Room.asks, [1000] * 7)
        Room.changes, Room.most, Room.asks = {"time": self.lent(0, 600_000, 590_000)}, 256, []
        self.assertEqual(sum(map(len, self.ids.tag("other").next_n(200))), 200)
        self.fails(Kind.INVALID, lambda: self.ids.tag("other").next_n(600))
        self.assertEqual(Room.asks, [200, 600])
        Room.faults = ["refused"]
        self.fails(Kind.REFUSED, self.ids.tag("other").next)

    def test_window_ends(self) -> None:
        """A window ends by the clock that only goes forward, too."""
        Room.changes, Room.most = {"time": self.lent(598_000, 600_000)}, 1
        self.assertGreater(self.ids.next("event"), 2**40)
        Room.changes = {"reason": "refused", "metadata": {"window": "none"}}
        time.sleep(2.2)
        self.assertLess(self.ids.next("event"), 2**40)

    def test_ahead(self) -> None:
        """A clock that is far ahead borrows one worker, not another one each second."""
        Room.changes, Room.most = {"time": self.lent(-30_000, 600_000)}, 1
        for _ in range(2):
            self.assertLess(self.ids.next("event"), 2**40)
            time.sleep(1.1)
        self.ids.next("event")
        self.assertEqual(sum(held is None for held in Room.held), 1)

    def test_anew(self) -> None:
        """Of a tag that was made anew, as a time-ordered one, the counter's IDs are dropped."""
        order = self.ids.tag("order")
        order.next()
        Room.changes = {"time": self.lent(0, 600_000)}
        order._lease(1, set())
        self.assertGreater(order.next(), 2**40)
        tag = {"workerBits": 12, "sequenceBits": 8, "timeBits": 40, "unit": "1s"}
        lent = {"worker": "1", "fromMs": "0", "untilMs": "9000", "nowMs": "0"}
        before = Window({"tag": tag, "window": lent})
        before.take(1, 5000)
        for unit, goes_on in (("1s", True), ("2s", False)):
            after = Window({"tag": {**tag, "unit": unit}, "window": lent}, before=before)
            self.assertEqual(after.take(1, 4000) is None, goes_on)

    def test_texts(self) -> None:
        """Texts are asked for again, as the reasons of errors say, and not of a client that was closed."""
        Room.most, Room.faults, tag = 1, ["unavailable", "unavailable"], self.ids.tag("text")
        self.assertEqual((tag.next_text().text, Room.asks), ("a", [1, 1, 1]))
        self.ids.close()
        for call in (tag.next_text, lambda: tag.parse_text("a")):
            self.fails(Kind.CLOSED, call)

    def test_files(self) -> None:
        """A file that is not there is no failure of a room."""
        with Client([self.url], token_file="/no/token") as ids:
            self.assertIn("/no/token", str(self.fails(Kind.UNAUTHENTICATED, lambda: ids.next("order"))))
        self.fails(Kind.INVALID, lambda: Client([self.url], ca="/no/ca"))
        with tempfile.NamedTemporaryFile() as ca:
            cas = ssl.create_default_context().get_ca_certs(binary_form=True)
            ca.write(ssl.DER_cert_to_PEM_cert(cas[0]).encode() if cas else b"")
            ca.flush()
            ids = Client([self.url.replace("http", "https")], ca=ca.name) if cas else None
        if ids:
            self.assertIn(ca.name, str(self.fails(Kind.INVALID, lambda: ids.next("order"))))

    def lent(self, now: int, until: int, since: int = -9000) -> Dict[str, Any]:
        """A window of a worker with 256 IDs in a second. The room's clock is now ms ahead."""
        at = int(time.time() * 1000)
        tag = {"workerBits": 12, "sequenceBits": 8, "timeBits": 40, "unit": "1s", "epochMs": "0"}
        window = {"fromMs": at + since, "untilMs": at + until, "nowMs": at + now}
        return {"tag": tag, "window": {"worker": "1", **{k: str(n) for k, n in window.items()}}}

    def test_limit_and_end(self) -> None:
        Room.changes = {"limit": str(Room.last + 101)}
        self.assertEqual(len([self.ids.next("few") for _ in range(100)]), 100)
        with self.assertRaises(MarchError) as refused:
            self.ids.next("few")
        self.assertIs(refused.exception.kind, Kind.EXHAUSTED)
        Room.changes = {"ttl": "2s"}
        self.ids.next("short")
        Room.changes = {"reason": "unavailable"}
        time.sleep(2.1)
        with self.assertRaises(MarchError) as away:
            self.ids.next("short")
        self.assertIs(away.exception.kind, Kind.UNAVAILABLE)
        self.assertTrue(away.exception.temporary)


if __name__ == "__main__":
    unittest.main()

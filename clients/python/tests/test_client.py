"""The client with a room of the test's own."""

import json
import os
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Set

from march_id import Client, Kind, MarchError


class Room(BaseHTTPRequestHandler):
    """Leases IDs from 1 on, with what a test changes in the answers."""

    lock, last, changes = threading.Lock(), 0, {}  # type: ignore[var-annotated]

    def do_POST(self) -> None:
        asked = int(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["count"])
        part: Dict[str, Any] = {"version": "1", "boundary": "1", "range": {"lower": "0", "upper": "1"}}
        with Room.lock:
            first, Room.last = Room.last + 1, Room.last + asked
        answer = {"segment": {**part, "first": str(first), "count": str(asked)}, "ttl": "600s", "serves": part,
                  "limit": "9223372036854775807", "time": None, **Room.changes}
        self.send_response(200 if "reason" not in answer else 503)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


class Clients(unittest.TestCase):
    def setUp(self) -> None:
        Room.changes, server = {}, ThreadingHTTPServer(("127.0.0.1", 0), Room)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was closed reads nothing
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.ids = Client([f"http://127.0.0.1:{server.server_address[1]}"])
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
        before = {self.ids.next("order") for _ in range(10)}
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps([self.ids.next("order") for _ in range(2000)]).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as out:
            others = set(json.loads(out.read()))
        os.waitpid(child, 0)
        mine = before | {self.ids.next("order") for _ in range(2000)}
        self.assertEqual((len(others), others & mine), (2000, set()))

    def test_limit_and_end(self) -> None:
        Room.changes = {"limit": str(Room.last + 101)}
        self.assertEqual(len([self.ids.next("few") for _ in range(100)]), 100)
        with self.assertRaises(MarchError) as refused:
            self.ids.next("few")
        self.assertIs(refused.exception.kind, Kind.EXHAUSTED)
        Room.changes = {"ttl": "0.4s"}
        self.ids.next("short")
        Room.changes = {"reason": "unavailable"}
        time.sleep(0.5)
        began = time.monotonic()
        with self.assertRaises(MarchError) as away:
            self.ids.next("short")
        self.assertIs(away.exception.kind, Kind.UNAVAILABLE)
        self.assertTrue(away.exception.temporary and time.monotonic() - began < 4)


if __name__ == "__main__":
    unittest.main()

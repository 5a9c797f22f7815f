"""The vectors of testdata/clients, which the Go code computes for all clients."""

import json
import pathlib
import unittest
from typing import Any, List

from march_id.ids import Segment, Window, part_of, runs_of, seconds
from march_id.rooms import Kind, MarchError, error_of, together

VECTORS = pathlib.Path(__file__).parents[3] / "testdata" / "clients"


def vectors(name: str) -> List[Any]:
    return list(json.loads((VECTORS / f"{name}.json").read_text()))


class Vectors(unittest.TestCase):
    def test_segments(self) -> None:
        for v in vectors("segments"):
            s = Segment(v["segment"], 10**9)
            for k, want in zip(v["at"][::2], v["at"][1::2]):
                self.assertEqual(str(s.id(s.at + int(k))), want, v)
                self.assertEqual(s.ordinal(int(want)), s.at + int(k), v)
            for limit, count in v["below"]:
                cut = Segment(v["segment"], 10**9)
                cut.cut(int(limit))
                self.assertEqual(cut.end - cut.at, int(count), (v["segment"], limit))
            head = Segment(v["segment"], 10**9).take(2)
            self.assertEqual(head, range(head.start, head.start + min(2, int(v["runs"][0][1]))))
            for run in v["runs"]:
                taken = s.take(10**9)
                self.assertEqual([str(taken.start), str(len(taken))], run)
        for change in ({"first": "49"}, {"count": "0"}, {"count": "1001"}, {"boundary": "0"}, {"version": "0"}):
            with self.assertRaises((ValueError, ArithmeticError), msg=str(change)):
                Segment({**vectors("segments")[3]["segment"], "count": "1000", **change}, 1000)

    def test_layouts(self) -> None:
        for v in vectors("layouts"):
            self.assertEqual(part_of(v["serves"]).outdates(part_of(v["segment"])), v["outdated"], v)

    def test_windows(self) -> None:
        for v in vectors("windows"):
            window = Window(v)
            for take in v["takes"]:
                got = window.take(int(take["n"]), int(take["nowMs"]))
                run = None if got is None else [str(got.start), str(len(got)), str(got.step)] if got else []
                self.assertEqual(run, take["run"], take)

    def test_runs(self) -> None:
        for v in vectors("runs"):
            ids = [str(id) for run in runs_of({"runs": [v["run"]]}, len(v["ids"])) for id in run]
            self.assertEqual(ids, v["ids"])

    def test_ttl(self) -> None:
        for v in vectors("ttl"):
            ttl, at = seconds(v["ttl"]), int(v["afterMs"]) / 1000
            s = Segment(vectors("segments")[0]["segment"], 10**9, 0.0, ttl)
            self.assertEqual((s.until <= at, s.due <= at), (v["ended"], v["replace"]), v)

    def test_errors(self) -> None:
        for v in vectors("errors"):
            e = error_of(v["status"], v["body"].encode(), v["retryAfter"])
            self.assertEqual((e.kind.value, e.temporary or e.no_window, e.retry_after, e.limit),
                             (v["kind"], v["elsewhere"], v["againSeconds"], int(v["limit"])), v)

    def test_together(self) -> None:
        for v in vectors("together"):
            failures = [MarchError(Kind(kind), "a room") for kind in v["failures"]]
            self.assertEqual(together(failures).kind.value, v["kind"], v)


if __name__ == "__main__":
    unittest.main()

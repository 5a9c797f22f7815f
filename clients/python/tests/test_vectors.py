"""The vectors of testdata/clients, which the Go code computes for all clients."""

import json
import math
import pathlib
import unittest
from typing import Any, List

from march_id.ids import Ticks, part_of, run_of, seconds, segment_of
from march_id.rooms import Kind, MarchError, error_of, together

VECTORS = pathlib.Path(__file__).parents[3] / "testdata" / "clients"


def vectors(name: str) -> List[Any]:
    return list(json.loads((VECTORS / f"{name}.json").read_text()))


class Vectors(unittest.TestCase):
    def test_segments(self) -> None:
        for v in vectors("segments"):
            s = segment_of(v["segment"], 10**9)
            for k, want in zip(v["at"][::2], v["at"][1::2]):
                self.assertEqual(str(s.at(int(k))), want, v)
            rest = s
            for run in v["runs"]:
                self.assertEqual([str(rest.first), str(rest.consecutive())], run)
                rest = rest.split(rest.consecutive())[1]
            for limit, count in v["below"]:
                self.assertEqual(s.below(int(limit)).count, int(count), (v["segment"], limit))
            head, rest = s.split(s.count // 3)
            self.assertEqual(head.count + rest.count, s.count)
            self.assertEqual(rest.first, s.at(s.count // 3))
        for change in ({"first": "49"}, {"count": "0"}, {"count": "1001"}, {"boundary": "0"}, {"version": "0"}):
            with self.assertRaises((ValueError, ArithmeticError), msg=str(change)):
                segment_of({**vectors("segments")[3]["segment"], "count": "1000", **change}, 1000)

    def test_layouts(self) -> None:
        for v in vectors("layouts"):
            self.assertEqual(part_of(v["serves"]).outdates(segment_of(v["segment"], 10**9)), v["outdated"], v)

    def test_windows(self) -> None:
        for v in vectors("windows"):
            ticks, window = Ticks(v["tag"]), [int(v["window"][k]) for k in ("worker", "fromMs", "untilMs")]
            for take in v["takes"]:
                got = ticks.take(int(take["n"]), int(take["nowMs"]), *window)
                run = None if got is None else [str(got.start), str(len(got)), str(got.step)] if got else []
                self.assertEqual(run, take["run"], take)

    def test_runs(self) -> None:
        for v in vectors("runs"):
            self.assertEqual([str(id) for id in run_of(v["run"])], v["ids"])

    def test_ttl(self) -> None:
        for v in vectors("ttl"):
            ttl, at = seconds(v["ttl"]), int(v["afterMs"]) / 1000
            s = segment_of(vectors("segments")[0]["segment"], 10**9, ttl or math.inf)
            self.assertEqual((s.until <= at, s.aging(at, ttl)), (v["ended"], v["replace"]), v)

    def test_errors(self) -> None:
        for v in vectors("errors"):
            e = error_of(v["status"], v["body"].encode(), v["retryAfter"])
            self.assertEqual((e.kind.value, e.elsewhere(), e.retry_after, e.limit),
                             (v["kind"], v["elsewhere"], v["againSeconds"], int(v["limit"])), v)

    def test_together(self) -> None:
        for v in vectors("together"):
            failures = [MarchError(Kind(kind), "a room") for kind in v["failures"]]
            self.assertEqual(together(failures).kind.value, v["kind"], v)


if __name__ == "__main__":
    unittest.main()

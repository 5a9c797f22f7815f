"""The arithmetic of IDs: segments of counters, and ticks of time-ordered tags. It asks no room and no clock."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Part:
    """A room's part of a layout: the IDs with lower <= id mod boundary < upper."""

    version: int
    boundary: int
    lower: int
    upper: int

    def outdates(self, segment: Segment) -> bool:
        """Whether a room with this part must replace a segment."""
        kept = self.boundary == segment.boundary and self.lower <= segment.lower and segment.upper <= self.upper
        return segment.version < self.version and not kept


@dataclass(frozen=True)
class Segment(Part):
    """count IDs of a part: first, and the smallest ones above it. From until on none of them may be issued."""

    first: int
    count: int
    until: float = math.inf  # by the client's clock

    def aging(self, now: float, ttl: float) -> bool:
        """Whether a third of its time is left, or less."""
        return self.until - ttl / 3 <= now

    def at(self, k: int) -> int:
        """The k-th ID, from 0."""
        offset = self.first % self.boundary - self.lower
        block, residue = divmod(offset + k, self.upper - self.lower)
        return self.first - offset + block * self.boundary + residue

    def split(self, n: int) -> Tuple[Segment, Segment]:
        """The first n IDs, and the rest."""
        n = min(n, self.count)
        return replace(self, count=n), replace(self, first=self.at(n), count=self.count - n)

    def below(self, limit: int) -> Segment:
        """The IDs below a limit."""
        blocks = limit // self.boundary - self.first // self.boundary
        residues = min(max(limit % self.boundary, self.lower), self.upper) - self.first % self.boundary
        return self.split(max(blocks * (self.upper - self.lower) + residues, 0))[0]

    def consecutive(self) -> int:
        """How many of the first IDs are consecutive."""
        whole = self.upper - self.lower == self.boundary
        return self.count if whole else min(self.count, self.upper - self.first % self.boundary)


def part_of(message: Optional[Mapping[str, Any]]) -> Part:
    """The part of an answer; that of no layout if there is none."""
    message, held = message or {}, (message or {}).get("range") or {}
    return Part(int(message.get("version", 0)), int(message.get("boundary", 0)), int(held.get("lower", 0)),
                int(held.get("upper", 0)))


def segment_of(message: Mapping[str, Any], asked: int, until: float = math.inf) -> Segment:
    """The segment of an answer. A ValueError says that it makes no sense."""
    s = Segment(**vars(part_of(message)), first=int(message["first"]), count=int(message["count"]), until=until)
    if not (0 <= s.lower < s.upper <= s.boundary and 0 < s.count <= asked and s.version > 0
            and s.lower <= s.first % s.boundary < s.upper and 0 <= s.first <= s.at(s.count - 1) < 2**63):
        raise ValueError(f"{s}, and {asked} IDs were asked for")
    return s


def run_of(message: Mapping[str, Any]) -> range:
    """The IDs of a run of an answer."""
    first, step = int(message["first"]), int(message.get("stride") or 1)
    return range(first, first + int(message["count"]) * step, step)


def seconds(duration: Optional[str]) -> float:
    """A duration of an answer, such as "600s"; 0 for none."""
    return float(duration[:-1]) if duration else 0.0


class Ticks:
    """The time-ordered IDs of a tag: of whole ticks of a worker's window, and none below the last ID's tick."""

    def __init__(self, tag: Mapping[str, Any], before: Optional[Ticks] = None) -> None:
        self._worker, self._sequence, self._time = (int(tag[k]) for k in ("workerBits", "sequenceBits", "timeBits"))
        self._unit, self._epoch = round(seconds(tag["unit"]) * 1000), int(tag.get("epochMs") or 0)
        self._order, self._policy, self._full = tag.get("order"), tag.get("sequence"), 1 << self._sequence
        self._carry_to = int(tag.get("carryTo") or 0) or max(self._full // 2 - 1, 1)
        self._random_below = min(int(tag.get("randomBelow") or 0) or 100, self._full)
        # The last ID. Later settings of a tag go on above it.
        self._tick: int = before._tick if before else -1
        self._last: int = before._last if before else 0

    def take(self, n: int, now: int, worker: int, since: int, until: int) -> Optional[range]:
        """Up to n IDs of the tick at a time in Unix ms: none if the tick is full; None if the worker's window, the
        clock or the bits do not allow any, so that a room must issue them."""
        tick = (now - self._epoch) // self._unit
        start = self._epoch + tick * self._unit
        if (tick < max(self._tick, 0) or tick >> self._time or start < since or start + self._unit > until
                or self._time + self._worker + self._sequence > 63):  # IDs of more bits exist only as texts
            return None
        first = self._last + 1 if tick == self._tick else self._begin()
        n = max(min(n, self._full - first), 0)
        if n:
            self._tick, self._last = tick, first + n - 1
        step = 1 << self._worker if self._order == "WORKER_ORDER_LAST" else 1
        place = worker + first * step if step > 1 else (worker << self._sequence) + first
        first = (tick << self._worker + self._sequence) + place
        return range(first, first + n * step, step)

    def _begin(self) -> int:
        if self._policy == "SEQUENCE_POLICY_RANDOM":
            return random.randrange(self._random_below)
        carried = 1 if self._last >= self._carry_to else self._last + 1
        return min(carried, self._full - 1) if self._policy == "SEQUENCE_POLICY_CARRY" else 0

    def per_second(self) -> int:
        """How many IDs one worker has in a second: a room issues no more at once."""
        return self._full * (1000 // self._unit)

    def left(self, now: int) -> float:
        """For how many seconds the tick at a time goes on."""
        return (self._unit - (now - self._epoch) % self._unit) / 1000

"""What a client holds: segments of counters, and windows of time-ordered tags. It asks no room and no clock."""

from __future__ import annotations

import math
import random
from typing import Any, List, Mapping, NamedTuple, Optional


class Part(NamedTuple):
    """A room's part of a layout: the IDs with lower <= id mod boundary < upper."""

    version: int = 0
    boundary: int = 0
    lower: int = 0
    upper: int = 0

    def outdates(self, old: Part) -> bool:
        """Whether a room with this part must replace what it leased of an older one."""
        kept = self.boundary == old.boundary and self.lower <= old.lower and old.upper <= self.upper
        return old.version < self.version and not kept


class Segment:
    """IDs of a part by their ordinals, which count the part's IDs from 0: at is the next one, end is after the last.

    From until on, by the client's clock, none may be issued; from due on, when a third of the time is left, it is to be
    replaced.
    """

    def __init__(self, message: Mapping[str, Any], asked: int, sent: float = 0.0, ttl: float = 0.0) -> None:
        self.part, first, count = part_of(message), int(message["first"]), int(message["count"])
        _, self.boundary, self.lower, upper = self.part
        self.width = upper - self.lower
        self.at = self.ordinal(first)
        self.end = self.at + count
        self.ttl, self.until = ttl, sent + ttl if ttl else math.inf
        self.due = self.until - ttl / 3
        if not (self.part.version > 0 and 0 <= self.lower < upper <= self.boundary and 0 < count <= asked
                and 0 <= first == self.id(self.at) and self.id(self.end - 1) < 2**63):
            raise ValueError(f"{count} IDs from {first} of {self.part}, and {asked} were asked for")

    def id(self, ordinal: int) -> int:
        return ordinal // self.width * self.boundary + self.lower + ordinal % self.width

    def ordinal(self, id: int) -> int:
        """How many IDs of the part are below one."""
        return id // self.boundary * self.width + min(max(id % self.boundary - self.lower, 0), self.width)

    def take(self, n: int) -> range:
        """The first of the IDs as far as they are consecutive, n at most."""
        first = self.at
        block = self.end if self.width == self.boundary else (first // self.width + 1) * self.width
        self.at = min(self.end, block, first + n)
        return range(self.id(first), self.id(first) + self.at - first)

    def cut(self, limit: int) -> None:
        """Drops the IDs from a limit on."""
        self.end = max(min(self.end, self.ordinal(limit)), self.at)


class Window:
    """The IDs of whole ticks of a worker that is lent for a time, above those of the window before."""

    def __init__(self, message: Mapping[str, Any], sent: float = 0.0, nonce: str = "", version: int = 0,
                 before: Optional[Window] = None) -> None:
        tag, lent = message["tag"], message["window"]
        self.worker, self.from_ms, self.until_ms, self.now_ms = (
            int(lent[name]) for name in ("worker", "fromMs", "untilMs", "nowMs"))
        self.nonce, self.part = nonce, Part(version)  # the proof that the worker is ours; until any other layout
        self.until = sent + (self.until_ms - self.now_ms) / 1000  # by the client's clock, as is due: to be renewed
        self.ttl = (self.until_ms - max(self.now_ms, self.from_ms)) / 1000
        self.due = self.until - self.ttl / 2
        self.ticks, workers, self.full = (1 << int(tag[bits]) for bits in ("timeBits", "workerBits", "sequenceBits"))
        self.size = workers * self.full  # IDs of a tick
        last = tag.get("order") == "WORKER_ORDER_LAST"
        self.step, self.place = (workers, self.worker) if last else (1, self.worker * self.full)
        self.unit, self.epoch = round(seconds(tag["unit"]) * 1000), int(tag.get("epochMs") or 0)
        self.policy = tag.get("sequence")
        self.carry_to = int(tag.get("carryTo") or 0) or max(self.full // 2 - 1, 1)
        self.random_below = min(int(tag.get("randomBelow") or 0) or 100, self.full)
        if not (self.from_ms < self.until_ms and 0 <= self.worker < workers):
            raise ValueError(f"worker {self.worker} of {workers} from {self.from_ms} until {self.until_ms} ms")
        self.layout = (self.ticks, self.size, self.step, self.unit, self.epoch)
        same = before and before.layout == self.layout  # or else the tag was made anew
        self.tick: int = before.tick if before and same else -1  # of the last ID,
        self.last: int = before.last if before and same else 0  # and its sequence

    def take(self, n: int, now: int) -> Optional[range]:
        """Up to n IDs of the tick at a time in Unix ms: none if the tick is full; None if the window, the clock or the
        bits do not allow any, so that a room must issue them."""
        tick, into = divmod(now - self.epoch, self.unit)
        if not (max(self.tick, 0) <= tick < self.ticks and self.from_ms <= now - into <= self.until_ms - self.unit
                and self.ticks * self.size <= 2**63):  # IDs of more bits exist only as texts
            return None
        first = self.last + 1 if tick == self.tick else self._begin()
        n = min(n, self.full - first)
        if n > 0:
            self.tick, self.last = tick, first + n - 1
        id = tick * self.size + self.place + first * self.step
        return range(id, id + n * self.step, self.step)

    def _begin(self) -> int:
        """The sequence of a tick's first ID."""
        if self.policy == "SEQUENCE_POLICY_CARRY":
            return min(self.last + 1 if self.last < self.carry_to else 1, self.full - 1)
        return random.randrange(self.random_below) if self.policy == "SEQUENCE_POLICY_RANDOM" else 0


def part_of(message: Optional[Mapping[str, Any]]) -> Part:
    """The part of an answer; that of no layout if there is none."""
    fields = {**(message or {}), **((message or {}).get("range") or {})}
    return Part(*(int(fields.get(name) or 0) for name in Part._fields))


def runs_of(answer: Mapping[str, Any], asked: int) -> List[range]:
    """The IDs of an answer's runs. A ValueError says that they are not as many as were asked for."""
    runs = [(int(run["first"]), int(run["count"]), int(run.get("stride") or 1)) for run in answer["runs"]]
    if min((count for _, count, _ in runs), default=0) < 1 or sum(count for _, count, _ in runs) != asked:
        raise ValueError(f"runs {runs}, and {asked} IDs were asked for")
    return [range(first, first + count * step, step) for first, count, step in runs]


def seconds(duration: Optional[str]) -> float:
    """A duration of an answer, such as "600s"; 0 for none."""
    return float(duration[:-1]) if duration else 0.0

"""Measures how many IDs a second the client issues: bench.py ADDRESS TAG, of which it takes a million, OTHER TAG."""

import json
import sys
import time

from march_id import Client

with Client([sys.argv[1]], timeout=60) as ids:  # as a new client begins; a busy machine is no fault
    for _ in range(1_000_000):
        ids.next(sys.argv[2])
with Client([sys.argv[1]], timeout=60, min_step=50_000_000) as ids:
    tag, best = ids.tag(sys.argv[3]), 0.0
    tag.warm()
    for take in (tag.next, lambda next=ids.next, name=sys.argv[3]: next(name)):
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(200_000):
                take()
            best = max(best, 200_000 / (time.perf_counter() - began))
    print(json.dumps({"perSecond": best}))

"""Calls the door at REDIS_URL with redis-py, as a service would."""

import os

import redis

client = redis.Redis.from_url(os.environ["REDIS_URL"], client_name="door")
seen = set()


def took(*ids):
    for number in ids:
        assert isinstance(number, int) and number not in seen, f"ID {number}"
        seen.add(number)


for _ in range(100):
    took(client.incr("door:python"))
last = client.incrby("door:python", 10)
took(*range(last - 9, last + 1))
for transaction in (True, False):
    pipe = client.pipeline(transaction=transaction)
    for _ in range(100):
        pipe.incr("door:python")
    took(*pipe.execute())
assert client.get("door:nosuch") is None
assert client.exists("door:python") == 1
try:
    client.expire("door:python", 1)
except redis.ResponseError as e:
    assert "EXPIRE is not served" in str(e), e
else:
    raise AssertionError("EXPIRE was served")
print(f"redis-py {redis.__version__}: {len(seen)} IDs")

"""Counts with redis-py over one connection, for .ci/doors/record."""

import os

import redis

client = redis.Redis.from_url(os.environ["REDIS_URL"], client_name="app")
client.incr("order")
client.incrby("order", 10)
for transaction in (False, True):
    client.pipeline(transaction=transaction).incr("order").incr("order").execute()
client.get("missing")
client.close()

// Counts with the client that is named as its argument, ioredis or node-redis, over one
// connection with the client's defaults, for .ci/doors/record.
import { Redis } from "ioredis";
import { createClient } from "redis";

const url = process.env.REDIS_URL;
if (process.argv[2] === "ioredis") {
  const client = new Redis(url, { lazyConnect: true, connectionName: "app" });
  await client.connect();
  await client.incr("order");
  await client.incrby("order", 10);
  await client.pipeline([["incr", "order"], ["incr", "order"]]).exec();
  await client.multi([["incr", "order"], ["incr", "order"]]).exec();
  await client.get("missing");
  await client.quit();
} else {
  const client = createClient({ url, name: "app" });
  await client.connect();
  await client.incr("order");
  await client.incrBy("order", 10);
  await Promise.all([client.incr("order"), client.incr("order")]);
  await client.multi().incr("order").incr("order").exec();
  await client.get("missing");
  await client.close();
}

// Takes IDs until its input ends, and writes each run of them; see clients/conformance.

import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "../src/client.js";

const options = JSON.parse(process.argv[2]);
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);
const { addresses, fallback, tokenFile, ca, minStep } = options;
const ids = new Client({ addresses, fallback, tokenFile, ca, minStep });
let text;
while (!text) { // a busy machine may take longer than the limit of a call to start all
  try {
    await Promise.all(options.tags.map((name) => ids.tag(name).warm()));
    text = await ids.tag(options.text).nextText();
  } catch (error) {
    if (error.kind !== "unavailable") throw error;
    await sleep(100);
  }
}
say("text", text.text, text.id, await ids.tag(options.text).parseText(text.text));
await ids.next("no-such-tag").catch((error) => say("unknown", error.kind));

let stopped = false;
async function load(name, single) {
  while (!stopped) {
    await sleep(5);
    const began = Date.now();
    try {
      const id = single ? await ids.next(name) : undefined;
      const runs = single ? [{ first: id, count: 1, step: 1n }] : await ids.tag(name).nextN(5);
      for (const run of runs) say("id", name, run.first, run.count, run.step, began);
    } catch (error) {
      say("error", name, error.kind, error.message);
    }
  }
}

const loads = options.tags.flatMap((name) => [load(name, false), load(name, true)]);
process.stdin.resume().on("end", async () => {
  stopped = true;
  await Promise.all(loads);
  ids.close();
  await ids.next(options.tags[0]).catch((error) => say("closed", error.kind));
});

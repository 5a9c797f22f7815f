// Takes IDs until its input ends, and writes each run of them; see clients/conformance.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "../src/client.js";

const options = JSON.parse(process.argv[2]);
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);
const { addresses, fallback, tokenFile, ca, minStep } = options;
const ids = new Client({ addresses, fallback, tokenFile, ca, minStep, maxStep: minStep });
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
async function take(name, n) {
  const began = Date.now();
  try {
    const runs = n === 1 ? [{ first: await ids.next(name), count: 1, step: 1n }] : await ids.tag(name).nextN(n);
    for (const run of runs) say("id", name, run.first, run.count, run.step, began);
  } catch (error) {
    say("error", name, error.kind, error.message);
  }
}

async function load(name, n) {
  while (!stopped) {
    await sleep(options.pause);
    await take(name, n);
  }
}

const loads = options.tags.flatMap((name) => [load(name, 1), load(name, 5)]);
const first = ids.tag(options.tags[0]);
for await (const _ of createInterface({ input: process.stdin })) { // each line has it hold half of a lease,
  const n = first.held - Math.floor(minStep / 2); // and so ask a room for more
  if (n > 1) await take(first.name, n);
}
stopped = true;
await Promise.all(loads);
ids.close();
await ids.next(first.name).catch((error) => say("closed", error.kind));

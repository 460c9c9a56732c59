// What a job does in every Node contender, and how jobs are asked for: the twin of body.py.
// The count is written every few milliseconds rather than at every job: Node has no mapped files.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const PADDING = "x".repeat(100);
const CALL = 500;
const CALLERS = 100;
const PAUSE = 50;
const URL = process.env.BENCH_URL;
const TALLY = process.env.BENCH_TALLY || ".";

// The monotonic clock that Python reads too, on Linux.
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

const tally = { count: 0, first: 0, last: 0, written: 0, file: null, samples: null };

function open() {
  tally.file = fs.openSync(path.join(TALLY, `count.${process.pid}`), "w+");
  tally.samples = fs.openSync(path.join(TALLY, `latency.${process.pid}`), "a");
  setInterval(write, 5);
}

function write() {
  if (tally.written === tally.count) return;
  tally.written = tally.count;
  const bytes = Buffer.alloc(24);
  bytes.writeBigInt64LE(BigInt(tally.count), 0);
  bytes.writeDoubleLE(tally.first, 8);
  bytes.writeDoubleLE(tally.last, 16);
  fs.writeSync(tally.file, bytes, 0, 24, 0);
}

function job(sent) {
  const now = monotonic();
  if (tally.file === null) open();
  if (sent) fs.writeSync(tally.samples, `${now - sent}\n`);
  if (tally.count === 0) tally.first = now;
  tally.count += 1;
  tally.last = now;
}

async function produce(single, many) {
  const [word, ...rest] = process.argv.slice(2);
  const count = Number(rest.at(-1));
  const began = monotonic();
  if (word === "latency") {
    for (let i = 0; i < count; i++) {
      await single(monotonic());
      await pause(PAUSE);
    }
  } else if (rest[0] === "concurrent") await byCallers(single, count);
  else if (rest[0] === "many")
    for (let i = 0; i < count; i += CALL) await many(Array(Math.min(CALL, count - i)).fill(0));
  else for (let i = 0; i < count; i++) await single(0);
  console.log(JSON.stringify({ count, began, ended: monotonic() }));
}

async function byCallers(single, count) {
  let left = count;
  const caller = async () => {
    while (left-- > 0) await single(0);
  };
  await Promise.all(Array.from({ length: CALLERS }, caller));
}

module.exports = { PADDING, URL, job, produce };

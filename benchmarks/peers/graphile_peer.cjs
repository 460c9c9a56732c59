// graphile-worker with its options for throughput: the local queue, batched completion without
// delay, prepared statements. 500 jobs are fetched at once, as ours are, and 24 run at a time; 2,000
// and 200 were 4 % faster in one trial, which is within the noise. A finished job is deleted.
"use strict";
const path = require("node:path");
const { createRequire } = require("node:module");
const { PADDING, URL, job, produce } = require("./body.cjs");

const installed = createRequire(path.join(process.env.BENCH_PACKAGES, "package.json"));
const { Logger, makeWorkerUtils, run } = installed("graphile-worker");
const { Pool } = installed("pg");

async function work() {
  const worker = {
    connectionString: URL,
    concurrentJobs: 24,
    maxPoolSize: 10,
    preparedStatements: true,
    localQueue: { size: 500, ttl: 300000, refetchDelay: { durationMs: 0 } },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: new Logger(() => () => {}),
  };
  const runner = await run({
    preset: { worker },
    taskList: { noop: async (payload) => job(payload.sent) },
  });
  await runner.promise;
}

async function main() {
  if (process.argv[2] === "worker") return work();
  const pool = new Pool({ connectionString: URL, max: 10 });
  const utils = await makeWorkerUtils({ pgPool: pool });
  const payload = (sent) => ({ sent, padding: PADDING });
  if (process.argv[2] === "schema") await utils.migrate();
  else
    await produce(
      (sent) => utils.addJob("noop", payload(sent)),
      (all) => utils.addJobs(all.map((sent) => ({ identifier: "noop", payload: payload(sent) }))),
    );
  await utils.release();
  await pool.end();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);

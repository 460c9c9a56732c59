// pg-boss: batches of 500, three at a time in one process, fetched again at once while they come
// back full, and woken by NOTIFY. The finished row is kept for its default of seven days.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const { PADDING, URL, job, produce } = createRequire(import.meta.url)("./body.cjs");
const packages = createRequire(path.join(process.env.BENCH_PACKAGES, "package.json"));
const { PgBoss } = await import(pathToFileURL(packages.resolve("pg-boss")).href);

const QUEUE = "bench";
const word = process.argv[2];
const boss = new PgBoss({
  connectionString: URL,
  max: 10,
  migrate: word === "schema",
  supervise: word === "worker",
  schedule: false,
  useListenNotify: true,
});
boss.on("error", (error) => console.error(error));
await boss.start();

const data = (sent) => ({ sent, padding: PADDING });
const options = {
  batchSize: 500,
  localConcurrency: 3,
  burstWhenBatchFull: true,
  pollingIntervalSeconds: 0.5,
  notifyPollingIntervalSeconds: 2,
};

if (word === "worker")
  await boss.work(QUEUE, options, async (jobs) => jobs.forEach((one) => job(one.data.sent)));
else {
  if (word === "schema") await boss.createQueue(QUEUE, { notify: true });
  else
    await produce(
      (sent) => boss.send(QUEUE, data(sent)),
      (all) => boss.insert(QUEUE, all.map((sent) => ({ data: data(sent) }))),
    );
  await boss.stop({ graceful: false });
  process.exit(0);
}

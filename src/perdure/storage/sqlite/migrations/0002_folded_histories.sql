-- Up to this sequence the older rows of a run's history are folded: several in one, compressed.
-- The first row, with which the run is created, stays as it is.
ALTER TABLE perdure_runs ADD COLUMN folded_to INTEGER NOT NULL DEFAULT 1;
-- Empty, but for the histories that are to be folded: see `fold_histories`.
CREATE INDEX perdure_runs_long ON perdure_runs (sequence) WHERE sequence - folded_to >= 128;

-- Keys are bytea, so that they are ordered as bytes whatever the database's
-- collation is.

-- One row. It has the newest revision and what follows from it; whoever changes
-- those holds the commit lock.
CREATE TABLE proxima_meta (
	id        smallint PRIMARY KEY CHECK (id = 1),
	epoch     text     NOT NULL, -- identifies this history; a restore must change it
	revision  bigint   NOT NULL, -- the newest ever given out
	compacted bigint   NOT NULL, -- what a reader may no longer ask for
	swept     bigint   NOT NULL, -- how far that is deleted
	size      bigint   NOT NULL  -- bytes of live values
) WITH (fillfactor = 10); -- room for its next versions on the same page
INSERT INTO proxima_meta VALUES (1, replace(gen_random_uuid()::text, '-', ''), 0, 0, 0, 0);

-- One row for each change since the last compaction, and the newest row of each
-- live key however old it is.
CREATE TABLE proxima_history (
	revision bigint   PRIMARY KEY,
	batch    bigint   NOT NULL, -- the last revision of the transaction
	kind     smallint NOT NULL, -- 1: put, 2: delete
	key      bytea    NOT NULL,
	created  bigint   NOT NULL,
	prev     bigint   NOT NULL, -- revision of the row that this one replaces, or 0
	expires  bigint   NOT NULL, -- Unix nanoseconds, or 0
	writer   bigint   NOT NULL, -- who wrote it, to look up a commit of unknown outcome
	value    bytea
);
CREATE UNIQUE INDEX proxima_history_key ON proxima_history (key, revision DESC);

-- The newest row of each live key.
CREATE TABLE proxima_live (
	key      bytea  PRIMARY KEY,
	revision bigint NOT NULL,
	expires  bigint NOT NULL
) WITH (fillfactor = 70);

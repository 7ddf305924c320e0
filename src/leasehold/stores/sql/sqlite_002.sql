-- Whose clock an end was read from, and what others observed of ends they cannot read.
CREATE TABLE clocks (
    id      INTEGER PRIMARY KEY,
    machine TEXT    NOT NULL,
    boot    TEXT    NOT NULL,
    shifted INTEGER NOT NULL,
    UNIQUE (machine, boot, shifted)
) STRICT;

-- Version 1 kept only the boot id. Without the machine's it counts as foreign:
-- such an end is observed for one ttl, never believed.
INSERT INTO clocks (machine, boot, shifted) SELECT DISTINCT '', boot, 0 FROM records;

ALTER TABLE records ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
UPDATE records SET clock = (SELECT clocks.id FROM clocks WHERE clocks.boot = records.boot);
ALTER TABLE records DROP COLUMN boot;

CREATE TABLE observations (
    family   TEXT    NOT NULL,
    member   TEXT    NOT NULL,
    clock    INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    ends     REAL    NOT NULL,
    at       REAL    NOT NULL,
    PRIMARY KEY (family, member, clock)
) STRICT, WITHOUT ROWID;

CREATE INDEX records_by_end ON records (clock, ends);

-- The table is named for its schema: a process of an older version, still running,
-- fails on its very next call instead of misreading what it finds.
ALTER TABLE records RENAME TO records_2;

-- Whose clock an end was read from: boot id, machine id, "shifted". Version 1 wrote
-- the boot id alone: readable within that boot, to be observed by everybody else.
ALTER TABLE records_2 RENAME COLUMN boot TO clock;
UPDATE records_2 SET clock = clock || '  ';

-- What the reader of one clock first saw, and when, of an end it cannot read.
CREATE TABLE observations (
    family   TEXT    NOT NULL,
    member   TEXT    NOT NULL,
    clock    TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    ends     REAL    NOT NULL,
    at       REAL    NOT NULL,
    PRIMARY KEY (family, member, clock)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER forget_observations AFTER DELETE ON records_2 BEGIN
    DELETE FROM observations WHERE family = old.family AND member = old.member;
END;

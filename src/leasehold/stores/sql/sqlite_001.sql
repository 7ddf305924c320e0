-- Records and the one counter behind all revisions.
CREATE TABLE state (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    schema   INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

-- A new file starts above every token an older file of the same name can have
-- given out: fewer than a million grants a second were made since the epoch.
INSERT INTO state VALUES (1, 1, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));

CREATE TABLE records (
    family   TEXT    NOT NULL,
    member   TEXT    NOT NULL,
    value    BLOB    NOT NULL,
    revision INTEGER NOT NULL,
    born     INTEGER NOT NULL,
    ttl      REAL,
    ends     REAL,
    boot     TEXT    NOT NULL,
    PRIMARY KEY (family, member)
) STRICT, WITHOUT ROWID;

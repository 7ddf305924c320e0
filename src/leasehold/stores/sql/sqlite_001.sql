-- Records, and the one counter behind all revisions. Opening the file raises the
-- counter to the wall clock's microseconds, so it need not start anywhere special.
CREATE TABLE state (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    schema   INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

INSERT INTO state VALUES (1, 1, 0);

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

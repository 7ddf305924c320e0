-- Schema version 1. `@schema@` stands for the name of the schema. Runs in one transaction.
--
-- Whoever calls the functions needs USAGE on the schema and EXECUTE on them, and nothing on
-- the tables: they act as their owner, with a search path nobody can bend.

CREATE TABLE @schema@.state (
    id      integer PRIMARY KEY CHECK (id = 1),
    version integer NOT NULL
);

-- One for all families, without a cache: a number from a cache would be used after larger ones.
CREATE SEQUENCE @schema@.revisions AS bigint CACHE 1;

-- A family may be longer than an index can hold: `family` has its first 600 characters, `rest`
-- what follows, and `digest` is the SHA-256 of family and member. A page is left with room, so
-- that a renewal stays on it and touches no index; what is dead is cleared away often.
CREATE TABLE @schema@.leases (
    family   text   COLLATE "C" NOT NULL,
    rest     text   COLLATE "C" NOT NULL,
    member   text   COLLATE "C" NOT NULL,
    digest   bytea  NOT NULL,
    value    bytea  NOT NULL,
    revision bigint NOT NULL,
    born     bigint NOT NULL,
    ttl      double precision,
    ends     timestamptz,
    PRIMARY KEY (family, digest),
    CHECK ((ttl IS NULL) = (ends IS NULL))
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 1000
);

-- What a client says first. Raises the sequence to the clock's microseconds: fewer than a
-- million writes a second were ever made, so this is above all that a crash without
-- synchronous commit, a failover or a restored backup may have forgotten, unless the clock was
-- set back. Every draw happens under a lock on the table that conflicts with the one here.
CREATE FUNCTION @schema@.hello() RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The year 2255: a clock that is absurdly ahead must not use up the range of tokens.
    reached CONSTANT bigint := least(date_part('epoch', clock_timestamp()) * 1000000, 9007199254740992);
    -- First, as DROP SCHEMA locks this table first: neither waits for the other holding something.
    version CONSTANT integer := (SELECT s.version FROM @schema@.state AS s);
BEGIN
    -- The next grant's commit, which is waited for, brings this to disk, too.
    PERFORM set_config('synchronous_commit', 'off', true);
    LOCK TABLE @schema@.leases IN EXCLUSIVE MODE;
    IF (SELECT s.last_value FROM @schema@.revisions AS s) < reached THEN
        PERFORM setval('@schema@.revisions', reached);
    END IF;
    RETURN version;
END
$$;

-- Whoever watches a key holds the lock of the key's bucket, shared, for as long as it listens.
-- A writer that gets that lock has nobody to tell, and whoever begins to watch meanwhile waits
-- until the write is visible. A NOTIFY for nobody would cost a lock of the whole server. There
-- are few buckets, so that many watchers do not fill the server's table of locks.
CREATE FUNCTION @schema@.hear(in_bucket integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_lock_shared('@schema@.leases'::regclass::oid::integer, in_bucket);
END
$$;

CREATE FUNCTION @schema@.unhear(in_bucket integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_unlock_shared('@schema@.leases'::regclass::oid::integer, in_bucket);
END
$$;

CREATE FUNCTION @schema@.is_watched(in_digest bytea) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT NOT pg_try_advisory_xact_lock('@schema@.leases'::regclass::oid::integer, get_byte(in_digest, 0))
$$;

CREATE FUNCTION @schema@.channel(in_digest bytea) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'leasehold_' || left(encode(in_digest, 'hex'), 2) || '_'
        || left(encode(sha256(convert_to('@schema@', 'UTF8') || in_digest), 'hex'), 40)
$$;

-- The family's turn, then the next revision. The turn is an advisory lock, held until the
-- transaction has ended and so until its write is visible: whoever comes next draws after that.
-- Drawn inside a write, and so under the lock on the table that `hello` waits for.
CREATE FUNCTION @schema@.draw(in_family text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN pg_advisory_xact_lock(hashtextextended(in_family, '@schema@.leases'::regclass::oid::bigint)) IS NOT NULL
        THEN nextval('@schema@.revisions')
    END
$$;

-- The instant of a look, read before it: a renewal that lands after it must not look like an
-- end. For that the look must be a fresh one, which only READ COMMITTED gives.
CREATE FUNCTION @schema@.instant() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'transactions run at %', current_setting('transaction_isolation') USING ERRCODE = 'LH001';
    END IF;
    RETURN clock_timestamp();
END
$$;

-- The verbs. `in_commit` replaces synchronous_commit for one write. The three that make up a
-- swap answer `done` or, where that is false, the live record that is in the way (NULL: none).

CREATE FUNCTION @schema@.load(
    in_family text, in_digest bytea,
    OUT value bytea, OUT revision bigint, OUT born bigint, OUT ttl double precision, OUT remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instant CONSTANT timestamptz := @schema@.instant();
BEGIN
    SELECT l.value, l.revision, l.born, l.ttl, date_part('epoch', l.ends - instant)
    INTO load.value, load.revision, load.born, load.ttl, load.remaining
    FROM @schema@.leases AS l
    WHERE l.family = in_family AND l.digest = in_digest AND (l.ends IS NULL OR l.ends > instant);
END
$$;

-- Writes where no live record is.
CREATE FUNCTION @schema@.put(
    in_family text, in_rest text, in_member text, in_digest bytea, in_value bytea,
    in_ttl double precision, in_commit text,
    OUT done boolean, OUT value bytea, OUT revision bigint, OUT born bigint,
    OUT ttl double precision, OUT remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF in_commit IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', in_commit, true);
    END IF;
    LOOP
        INSERT INTO @schema@.leases AS l (family, rest, member, digest, value, revision, born, ttl, ends)
        SELECT in_family, in_rest, in_member, in_digest, in_value, drawn.n, drawn.n, in_ttl,
            clock_timestamp() + in_ttl * interval '1 second'
        FROM (SELECT @schema@.draw(in_family) AS n OFFSET 0) AS drawn
        ON CONFLICT DO NOTHING
        RETURNING true, l.revision INTO done, put.revision;
        EXIT WHEN done;

        SELECT false, seen.* INTO done, put.value, put.revision, put.born, put.ttl, put.remaining
        FROM @schema@.load(in_family, in_digest) AS seen;
        IF revision IS NOT NULL THEN
            RETURN;
        END IF;

        -- What has ended makes room. If a sweep was quicker, there is room already.
        UPDATE @schema@.leases AS l
        SET value = in_value, revision = drawn.n, born = drawn.n, ttl = in_ttl,
            ends = clock_timestamp() + in_ttl * interval '1 second'
        FROM (SELECT @schema@.draw(in_family) AS n OFFSET 0) AS drawn
        WHERE l.family = in_family AND l.digest = in_digest AND l.ends <= clock_timestamp()
        RETURNING true, l.revision INTO done, put.revision;
        EXIT WHEN done;
    END LOOP;
    IF @schema@.is_watched(in_digest) THEN
        PERFORM pg_notify(@schema@.channel(in_digest), '');
    END IF;
    IF revision % 256 = 0 THEN
        PERFORM @schema@.sweep(in_family);
    END IF;
END
$$;

-- Writes over exactly the record that is expected. With `in_keep` its end stays where it is.
CREATE FUNCTION @schema@.rewrite(
    in_family text, in_digest bytea, in_expect bigint, in_value bytea,
    in_ttl double precision, in_keep boolean, in_commit text,
    OUT done boolean, OUT value bytea, OUT revision bigint, OUT born bigint,
    OUT ttl double precision, OUT remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF in_commit IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', in_commit, true);
    END IF;
    UPDATE @schema@.leases AS l
    SET value = in_value, revision = drawn.n, ttl = CASE WHEN in_keep THEN l.ttl ELSE in_ttl END,
        ends = CASE WHEN in_keep THEN l.ends ELSE clock_timestamp() + in_ttl * interval '1 second' END
    FROM (SELECT @schema@.draw(in_family) AS n OFFSET 0) AS drawn
    WHERE l.family = in_family AND l.digest = in_digest
        AND l.revision = in_expect AND (l.ends IS NULL OR l.ends > clock_timestamp())
    RETURNING true, l.revision, l.born, l.ttl, date_part('epoch', l.ends - clock_timestamp())
    INTO done, rewrite.revision, rewrite.born, rewrite.ttl, rewrite.remaining;
    IF done IS NULL THEN
        SELECT false, seen.* INTO done, rewrite.value, rewrite.revision, rewrite.born, rewrite.ttl, rewrite.remaining
        FROM @schema@.load(in_family, in_digest) AS seen;
    ELSIF @schema@.is_watched(in_digest) THEN
        PERFORM pg_notify(@schema@.channel(in_digest), '');
    END IF;
END
$$;

-- Deletes exactly the record that is expected. Nothing is drawn, so no turn is needed.
CREATE FUNCTION @schema@.remove(
    in_family text, in_digest bytea, in_expect bigint, in_commit text,
    OUT done boolean, OUT value bytea, OUT revision bigint, OUT born bigint,
    OUT ttl double precision, OUT remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF in_commit IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', in_commit, true);
    END IF;
    DELETE FROM @schema@.leases AS l
    WHERE l.family = in_family AND l.digest = in_digest
        AND l.revision = in_expect AND (l.ends IS NULL OR l.ends > clock_timestamp());
    done := FOUND;
    IF NOT done THEN
        SELECT seen.* INTO remove.value, remove.revision, remove.born, remove.ttl, remove.remaining
        FROM @schema@.load(in_family, in_digest) AS seen;
    ELSIF @schema@.is_watched(in_digest) THEN
        PERFORM pg_notify(@schema@.channel(in_digest), '');
    END IF;
END
$$;

-- Every hold is verified and answered for itself. Rows are locked in one order, so that two
-- batches cannot wait for each other. No turn either; a turn for each of many families would
-- fill the server's table of locks.
CREATE FUNCTION @schema@.touch(
    in_families text[], in_digests bytea[], in_revisions bigint[], in_ttls double precision[], in_commit text
)
RETURNS TABLE (
    nth bigint, renewed boolean, value bytea, revision bigint, born bigint,
    ttl double precision, remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hold record;
BEGIN
    IF in_commit IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', in_commit, true);
    END IF;
    FOR hold IN
        SELECT given.* FROM unnest(in_families, in_digests, in_revisions, in_ttls)
            WITH ORDINALITY AS given (family, digest, revision, ttl, nth)
        ORDER BY given.digest
    LOOP
        UPDATE @schema@.leases AS l
        SET ttl = hold.ttl, ends = clock_timestamp() + hold.ttl * interval '1 second'
        WHERE l.family = hold.family AND l.digest = hold.digest
            AND l.revision = hold.revision AND (l.ends IS NULL OR l.ends > clock_timestamp());
        IF FOUND THEN
            RETURN QUERY SELECT hold.nth, true, NULL::bytea, NULL::bigint, NULL::bigint,
                NULL::double precision, NULL::double precision;
        ELSE
            RETURN QUERY SELECT hold.nth, false, seen.* FROM @schema@.load(hold.family, hold.digest) AS seen;
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION @schema@.scan(in_family text, in_rest text)
RETURNS TABLE (
    family text, member text, value bytea, revision bigint, born bigint,
    ttl double precision, remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instant CONSTANT timestamptz := @schema@.instant();
BEGIN
    RETURN QUERY
    SELECT l.family || l.rest, l.member, l.value, l.revision, l.born, l.ttl, date_part('epoch', l.ends - instant)
    FROM @schema@.leases AS l
    WHERE l.family = in_family AND l.rest = in_rest AND (l.ends IS NULL OR l.ends > instant)
    ORDER BY l.born;
END
$$;

-- What comes after (in_family, in_rest, in_member), in families before (end_family, end_rest).
CREATE FUNCTION @schema@.page(
    in_family text, in_rest text, in_member text, end_family text, end_rest text, in_limit integer
)
RETURNS TABLE (
    family text, member text, value bytea, revision bigint, born bigint,
    ttl double precision, remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instant CONSTANT timestamptz := @schema@.instant();
BEGIN
    RETURN QUERY
    SELECT l.family || l.rest, l.member, l.value, l.revision, l.born, l.ttl, date_part('epoch', l.ends - instant)
    FROM @schema@.leases AS l
    WHERE l.family BETWEEN in_family AND end_family
        AND (l.family, l.rest, l.member) > (in_family, in_rest, in_member)
        AND (l.family, l.rest) < (end_family, end_rest)
        AND (l.ends IS NULL OR l.ends > instant)
    ORDER BY l.family, l.rest, l.member
    LIMIT in_limit;
END
$$;

-- Clearing away what has ended. What somebody else is writing is left alone.

CREATE FUNCTION @schema@.collect(in_limit integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM @schema@.leases AS l
    WHERE l.ctid = ANY (ARRAY(
        SELECT d.ctid FROM @schema@.leases AS d WHERE d.ends <= clock_timestamp()
        LIMIT in_limit FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- Looks at a few records after this family, and goes on from the first: in time every one gets
-- its turn.
CREATE FUNCTION @schema@.sweep(in_family text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @schema@.leases AS l
    USING (
        SELECT d.family, d.digest FROM @schema@.leases AS d
        WHERE d.ends <= clock_timestamp() AND (d.family, d.digest) IN (
            (SELECT a.family, a.digest FROM @schema@.leases AS a WHERE a.family > in_family
                ORDER BY a.family, a.digest LIMIT 32)
            UNION ALL
            (SELECT b.family, b.digest FROM @schema@.leases AS b ORDER BY b.family, b.digest LIMIT 32)
        )
        FOR UPDATE SKIP LOCKED
    ) AS dead
    WHERE l.family = dead.family AND l.digest = dead.digest;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;
INSERT INTO @schema@.state VALUES (1, 1);

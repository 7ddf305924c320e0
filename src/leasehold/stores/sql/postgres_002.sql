-- Schema version 2: scans of a part of a family.

-- In the order of members. Neither a family nor a member need fit into an index: a hash of the one
-- and the first 600 characters of the other narrow it down, and every row found is compared whole.
CREATE INDEX leases_by_member ON @schema@.leases
    (hashtextextended(family || rest, 0), (left(member, 600) COLLATE "C"));

-- Live records in any order, `in_limit` at most, so that no more than these are read: of the whole
-- family, or of those windows of members, which do not overlap. Processes of version 1 call the
-- one with two arguments for as long as their connections last.
--
-- The plan must not depend on how large the table was when it was made. Windows therefore leave
-- the primary key nothing to go by, and a look at the whole table is not to be had.
CREATE FUNCTION @schema@.scan(in_family text, in_rest text, in_firsts text[], in_ends text[], in_limit integer)
RETURNS TABLE (
    family text, member text, value bytea, revision bigint, born bigint,
    ttl double precision, remaining double precision
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    instant CONSTANT timestamptz := @schema@.instant();
BEGIN
    IF in_firsts IS NULL THEN
        RETURN QUERY
        SELECT l.family || l.rest, l.member, l.value, l.revision, l.born, l.ttl, date_part('epoch', l.ends - instant)
        FROM @schema@.leases AS l
        WHERE l.family = in_family AND l.rest = in_rest AND (l.ends IS NULL OR l.ends > instant)
        LIMIT in_limit;
    ELSE
        RETURN QUERY
        SELECT l.* FROM unnest(in_firsts, in_ends) AS w (first, stop) CROSS JOIN LATERAL (
            SELECT m.family || m.rest, m.member, m.value, m.revision, m.born, m.ttl,
                date_part('epoch', m.ends - instant)
            FROM @schema@.leases AS m
            WHERE hashtextextended(m.family || m.rest, 0) = hashtextextended(in_family || in_rest, 0)
                AND (left(m.member, 600) COLLATE "C") >= left(w.first, 600)
                AND (left(m.member, 600) COLLATE "C") <= left(w.stop, 600)
                AND m.member >= w.first AND m.member < w.stop
                AND m.family || m.rest = in_family || in_rest
                AND (m.ends IS NULL OR m.ends > instant)
            LIMIT in_limit
        ) AS l
        LIMIT in_limit;
    END IF;
END
$$;

-- Whoever may call the one may call the other, and nobody else.
REVOKE ALL ON FUNCTION @schema@.scan(text, text, text[], text[], integer) FROM PUBLIC;
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT a.grantee::regrole AS grantee
        FROM pg_catalog.pg_proc AS p, pg_catalog.aclexplode(p.proacl) AS a
        WHERE p.oid = '@schema@.scan(text, text)'::regprocedure AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION @schema@.scan(text, text, text[], text[], integer) TO %s', given.grantee);
    END LOOP;
END
$$;

UPDATE @schema@.state SET version = 2;

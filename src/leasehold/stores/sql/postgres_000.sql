-- Before the steps of an installation, in the same transaction: one installer at a time, and
-- only if the schema still has the version (0: none) the steps begin at.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SELECT pg_advisory_xact_lock(hashtextextended('leasehold @schema@', 0));
DO $$
DECLARE
    installed boolean := EXISTS (
        SELECT FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = '@schema@' AND p.proname = 'hello'
    );
    found integer := 0;
BEGIN
    IF installed THEN
        found := (SELECT version FROM @schema@.state);
    ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '@schema@') THEN
        CREATE SCHEMA @schema@;
    END IF;
    IF found <> @version@ THEN
        RAISE EXCEPTION 'schema @schema@ has version %, not @version@', found;
    END IF;
END
$$;

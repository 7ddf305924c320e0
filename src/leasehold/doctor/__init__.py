"""Is this store fit to keep leases? Facts are gathered over its own wire, then judged by pure functions.

`gather_*` asks and decides nothing; `judge_*` decides and asks nothing, so every
judgement is a small rule that can be read and tried by itself. `examine` joins
them. The doctor writes what any client does: the tables, if they are missing, and
one record of its own, which it deletes again.
"""

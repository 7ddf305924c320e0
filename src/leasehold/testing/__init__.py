"""For tests of programs that use Leasehold, and for stores written by others.

`clock` moves time by hand; `faults` breaks a store or a connection on purpose;
`conformance` is the suite every store must pass.
"""

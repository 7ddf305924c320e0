"""Idempotency-Key over real servers."""

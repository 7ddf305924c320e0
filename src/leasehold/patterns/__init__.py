"""What people build on leases. Each pattern is one `async def` source and two thin facades over it."""

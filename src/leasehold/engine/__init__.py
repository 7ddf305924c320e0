"""What holding means: written once, `async def`, over the seam and a runtime of either colour."""

"""The largest token that this client was granted, by family: what shows that a store went back.

Revisions of a family grow in the order in which they become visible, so a grant that is asked for after another
one was made has a larger token. Compare with what was known when it was *asked for*: of two that are
under way at once, either may be told first. Forgetting is safe: then only a resource's mark notices.
"""

from __future__ import annotations

import threading

FAMILIES = 4096


class Marks:
    """Numbers by family, for those that were used last."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Know nothing: at the start, and in a forked child."""
        self._mutex = threading.Lock()
        self._marks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def of(self, family: str) -> int:
        """The largest token known of a family; 0 if there is none."""
        return self._marks.get(family, 0)

    def note(self, family: str, token: int) -> None:
        """A token was granted."""
        with self._mutex:
            # Put in anew, so that the first is the one that was not used for longest.
            self._marks[family] = max(self._marks.pop(family, 0), token)
            if len(self._marks) > FAMILIES:
                del self._marks[next(iter(self._marks))]

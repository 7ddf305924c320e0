"""Every point at which a worker is killed while it handles a key: before and after each request, and in the work.

A point is named `SCENE: WHEN WHAT`. That none is missing is tested: each scene is played once without a death, and
must pass exactly these.
"""

from __future__ import annotations

BEGINNING = ("before look 1", "after look 1", "before take 1", "after take 1", "before write 1", "after write 1")
ENDING = ("before end 1", "between record and lease", "after end 1")

WORK = (
    "function began",
    "before write 2", "after write 2",
    "charge began", "charge opened the sink", "charge read the sink", "charge wrote the sink",
    "before write 3", "after write 3",
    "between steps",
    "before write 4", "after write 4",
    "in the second step",
    "before write 5", "after write 5",
    "function ended",
)  # fmt: skip

REPAIR = (
    "before take 1", "after take 1", "before look 1", "after look 1", "before write 1", "after write 1",
    "before let go 1", "after let go 1",
)  # fmt: skip

SCENES: dict[str, tuple[str, ...]] = {
    # Nobody was there before, and it is completed.
    "run": (*BEGINNING, *WORK, *ENDING, "answered"),
    # It takes so long that its lease is renewed.
    "long": ("before renewal", "after renewal"),
    # It ends with an error: a definite one, one that may be retried, any other.
    "fail": ("before the error", *ENDING),
    "retry": ("before the error", *ENDING),
    "break": ("before the error", *ENDING),
    # Somebody died after the effect; this one does it again, and finds the effect.
    "take over": (
        *BEGINNING, "function began", "charge began", "charge opened the sink", "charge read the sink",
        "before write 2", "after write 2", "between steps", "before write 3", "after write 3", "in the second step",
        "before write 4", "after write 4", "function ended", *ENDING, "answered",
    ),
    # Somebody died after the effect; this one may not do it again.
    "refuse": (
        "before look 1", "after look 1", "before take 1", "after take 1", "before look 2", "after look 2",
        "before let go 1", "after let go 1",
    ),
    # Somebody is at it; this one waits for the answer.
    "wait": ("before look", "after look", "before take", "after take", "before watch", "after watch", "answered"),
    # Somebody died after the effect, and a person sees to it.
    "settle": REPAIR,
    "forget": REPAIR,
}  # fmt: skip

POINTS = [f"{scene}: {point}" for scene, points in SCENES.items() for point in points]

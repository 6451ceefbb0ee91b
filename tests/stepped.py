"""Has a process die at a step on disk."""

import os
import signal

STEPS = ("fsync", "replace", "rename", "rmdir", "unlink", "mkdir")


def die_before(step: int) -> None:
    """SIGKILL of this process before its `step`-th call from now on that changes a disk."""
    left = [step]

    def watched(real):
        def call(*args, **options):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in STEPS:
        setattr(os, name, watched(getattr(os, name)))

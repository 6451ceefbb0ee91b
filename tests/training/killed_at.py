"""A plugin that kills its process after step `KILLED_AT`: `covis --import killed_at train …`."""

import os
import signal

from covis.training.step import Step

_step = Step.__call__


def step_and_die(self, number, *arguments):
    loss = _step(self, number, *arguments)
    if number == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return loss


Step.__call__ = step_and_die

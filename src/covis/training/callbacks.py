"""What a run calls as it goes: own scalars, loggers, an average of the weights, or anything of your own."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from covis.core.errors import InputError
from covis.core.progress import say
from covis.core.tables import text_table

if TYPE_CHECKING:
    from torch import Tensor

    from covis.training.loop import Loop


class Callback:
    """Base class: override what you need. On several ranks each calls its own; `loop.ranks.first` writes files."""

    def on_start(self, loop: Loop) -> None:
        """Before the first step, or the first after resuming."""

    def on_step(self, loop: Loop, row: dict[str, Any]) -> None:
        """After each step; numbers that are added to `row` become scalars of the run."""

    def on_validation(self, loop: Loop, row: dict[str, Any]) -> None:
        """After each validation, with `recall@1`, … in `row`."""

    def on_end(self, loop: Loop) -> None:
        """After the last step, before models are written."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: tensors, numbers and texts."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Back from `state`."""


class AverageWeights(Callback):
    """An exponential moving average of what learns; it is the run's last model (EMA)."""

    def __init__(self, decay: float = 0.999) -> None:
        self.decay, self.average = decay, dict[str, "Tensor"]()

    def on_step(self, loop: Loop, row: dict[str, Any]) -> None:
        """Moves the average towards the weights."""
        for name, value in loop.model.learned_state().items():
            if name in self.average and value.is_floating_point():
                self.average[name].lerp_(value.detach().to(self.average[name].device), 1 - self.decay)
            else:
                self.average[name] = value.detach().clone()

    def on_end(self, loop: Loop) -> None:
        """Puts the average into the model."""
        loop.model.load_state_dict(self.average, strict=False)

    def state(self) -> dict[str, Any]:
        """The average."""
        return copy.copy(self.average)

    def restore(self, state: dict[str, Any]) -> None:
        """Back from `state`."""
        self.average = dict(state)


class Profile(Callback):
    """Where the time of twenty steps goes, by torch's profiler: a table, and RUN/profile.json for a viewer of traces."""

    def on_start(self, loop: Loop) -> None:
        """Begins with the third step: the first ones pay for set-up."""
        from torch import profiler

        def show(found: Any) -> None:
            found.export_chrome_trace(str(loop.run / "profile.json"))
            spent = {e.key: e.cpu_time_total for e in found.key_averages() if e.key.startswith(_WORK)}
            total = max(1.0, sum(spent.values()))
            rows = [{"work": key.removeprefix(_WORK), "%": f"{100 * us / total:.1f}"} for key, us in spent.items()]
            say(text_table(rows))

        plan = profiler.schedule(wait=1, warmup=1, active=20, repeat=1)
        self.profiler = profiler.profile(schedule=plan, on_trace_ready=show if loop.ranks.first else None)
        self.profiler.start()

    def on_step(self, loop: Loop, row: dict[str, Any]) -> None:
        """Counts the step."""
        self.profiler.step()

    def on_end(self, loop: Loop) -> None:
        """Shows what there is of a short run."""
        self.profiler.stop()


_WORK = "covis: "


def work(name: str) -> AbstractContextManager[Any]:
    """Names what a step does, for `Profile`."""
    from torch.profiler import record_function

    return record_function(_WORK + name)


class _Logger(Callback):
    """Scalars of the first rank, every `every` steps, to a tracker."""

    package = ""

    def __init__(self, every: int = 10, **settings: Any) -> None:
        self.every, self.settings = every, settings

    def on_start(self, loop: Loop) -> None:
        """Starts the tracker's run."""
        if loop.ranks.first:
            self.start(self._tracker(), loop)

    def on_step(self, loop: Loop, row: dict[str, Any]) -> None:
        """Sends the row."""
        if loop.ranks.first and (row["step"] % self.every == 0 or "recall@5" in row):
            numbers = {k: v for k, v in row.items() if isinstance(v, (int, float)) and k != "step"}
            self.send({k.replace("@", "_at_"): float(v) for k, v in numbers.items()}, row["step"])

    def on_end(self, loop: Loop) -> None:
        """Ends the tracker's run."""
        if loop.ranks.first:
            self.end()

    def _tracker(self) -> Any:
        import importlib

        try:
            return importlib.import_module(self.package)
        except ImportError:
            raise InputError(
                f"{type(self).__name__} needs {self.package}, which is not installed: pip install {self.package}"
            ) from None

    def start(self, tracker: Any, loop: Loop) -> None:
        """Opens a run of the tracker, the same one after resuming."""

    def send(self, scalars: dict[str, float], step: int) -> None:
        """One step's scalars."""

    def end(self) -> None:
        """Closes the run."""


class WandB(_Logger):
    """Weights & Biases; further arguments go to `wandb.init` (project, group, mode="offline", …)."""

    package = "wandb"

    def start(self, tracker: Any, loop: Loop) -> None:
        """Opens the run whose id is the run folder's name."""
        given = {"id": loop.run.name, "name": loop.run.name, "resume": "allow", "dir": str(loop.run)}
        self.tracked = tracker.init(**{**given, "config": loop.description(), **self.settings})

    def send(self, scalars: dict[str, float], step: int) -> None:
        """One step's scalars."""
        self.tracked.log(scalars, step=step)

    def end(self) -> None:
        """Closes the run."""
        self.tracked.finish()


class MLflow(_Logger):
    """MLflow; further arguments go to `mlflow.start_run` (run_name, tags, …)."""

    package = "mlflow"

    def start(self, tracker: Any, loop: Loop) -> None:
        """Opens a run named after the run folder."""
        self.tracker = tracker
        tracker.start_run(**{"run_name": loop.run.name, **self.settings})
        tracker.log_params({k: str(v)[:500] for k, v in loop.description().items()})

    def send(self, scalars: dict[str, float], step: int) -> None:
        """One step's scalars."""
        self.tracker.log_metrics(scalars, step=step)

    def end(self) -> None:
        """Closes the run."""
        self.tracker.end_run()


LOGGERS: dict[str, type[_Logger]] = {"wandb": WandB, "mlflow": MLflow}
"""Names for `covis train --log`."""

"""Labelled examples from the task files, the Hugging Face hub, or files of one's own."""

from xlt_training.data.task_config import Splits, TaskConfig, left_out, opened, recorded
from xlt_training.data.tasks import TASKS, Task, languages, load_split

__all__ = [
    "TASKS",
    "Splits",
    "Task",
    "TaskConfig",
    "languages",
    "left_out",
    "load_split",
    "opened",
    "recorded",
]

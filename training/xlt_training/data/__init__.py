"""Labelled examples from the task files, the Hugging Face hub, or a file of one's own."""

from xlt_training.data.tasks import TASKS, Task, languages, load_split

__all__ = ["TASKS", "Task", "languages", "load_split"]

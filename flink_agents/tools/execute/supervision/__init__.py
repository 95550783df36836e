"""The processes between a TaskManager and a model's code: a keeper, and one supervisor for each execution or session.

Standard library only: they start in milliseconds, without the package's own imports, and hold no thread.
"""

"""Learning rates and batch sizes: schedules, plateaus and finders.

Begin with ``schedule.py``; ``curves.py`` holds the formulas as plain functions.
"""

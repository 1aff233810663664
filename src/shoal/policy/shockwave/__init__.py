"""Shockwave: a market over time that plans windows of rounds for jobs that change while they train.

``policy`` decides, ``forecasts`` predicts each job's regimes, ``window_jobs`` holds what a window is planned from,
``welfare`` values rounds, ``carry`` passes from one decision to the next, ``reasons`` explains the verdicts.
"""

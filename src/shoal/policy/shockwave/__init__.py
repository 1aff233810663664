"""Shockwave: a market over time that plans windows of rounds for jobs that change while they train.

``policy`` decides, ``outlook`` says what every job has before it, ``welfare`` what rounds are worth to it, ``memory``
what is carried from one decision to the next, and ``words`` what everyone is told.
"""

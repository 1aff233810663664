"""Searchers: which trials of an app are trained further and which are stopped.

They run on the user's side: they get progress and answer with jobs to submit and to cancel, in the simulator and on a
live cluster alike; no policy knows them. A searcher is a pure function of the trials' state.
"""

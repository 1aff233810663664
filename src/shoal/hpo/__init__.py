"""App schedulers: who of several trials of one app is trained further, and who is given up.

They are on the user's side of the seam. They hear of progress and answer with jobs to submit and jobs to cancel, in the
simulator and on a cluster alike; no policy knows them. A searcher is a pure function of what it was told.
"""

"""Jobs run by workers that hold a loaded model: processes of this machine, or actors of Ray.

An engine takes jobs and gives outcomes. It keeps nothing on disk: a job's function does, under a
name that says all that decides it, so that a job that is run twice does no harm.
"""

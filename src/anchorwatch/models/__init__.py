"""Load a checkpoint by family, prove it, and get `logprobs[p]` for the token AT p.

Nothing is imported here: the family table (families.py) can be read without torch.
"""

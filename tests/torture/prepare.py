"""Imports all that is slow to import, once: children are forked with it in memory."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.parquet
import scipy.stats
import torch
import transformers.modeling_utils
import xarray as xr
import zarr

import anchorwatch.cli
import anchorwatch.effects
import anchorwatch.evaluation.grid
import anchorwatch.explorer.server
import anchorwatch.figures.catalogue
import anchorwatch.metrics.everything
import anchorwatch.models.convert
import anchorwatch.models.loading
import anchorwatch.studies.running
import anchorwatch.training.loop
from anchorwatch.studies.budget import BUDGETS, Budget

torch.set_num_threads(1)  # a pool of threads does not live through a fork
BUDGETS["least"] = Budget("least", prompts=3, length=4, steps=2, items=2, rows=1, answer=2)

IMPORTED = (plt, pd, pyarrow.parquet, scipy.stats, torch, transformers, xr, zarr, anchorwatch)

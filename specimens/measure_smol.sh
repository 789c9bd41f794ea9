#!/bin/bash
cd /work/specimens; export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=/work/specimens/tree/src
mkdir -p measures
for at in "$@"; do
  if [ $at = arm ]; then src=bases/smol-arm; else src=runs/smol-mdm-s0/snapshots/update-$(printf %08d $at); fi
  [ -f measures/smol-s0-$at.json ] || nice -n 19 /work/main/.venv/bin/python measure.py $src measures/smol-s0-$at.json 4 32 >> measures.txt 2>> measures.err
done

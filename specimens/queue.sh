#!/bin/bash
# One job after another, nice 19, one thread: text, base, stem, short diffusion runs, their measures.
cd /work/specimens; export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=/work/specimens/tree/src
PY=/work/main/.venv/bin/python; AW=/work/main/.venv/bin/anchorwatch
say() { echo "$(date +%H:%M:%S) $*" >> queue.log; }
if [ ! -f text/tales.jsonl ]; then
  until [ $(wc -l < text/stories-0.jsonl) -ge ${STORIES:-560} ]; do sleep 5; done
  cp text/stories-0.jsonl text/tales.jsonl.tmp && mv text/tales.jsonl.tmp text/tales.jsonl; say text $(wc -l < text/tales.jsonl)
  kill $(pgrep -f "write_stories.py text/stories-0.jsonl" | head -1)
fi
[ -f bases/tales-12/tokenizer.json ] || nice -n 19 $PY base_tales.py bases/tales-12 12 4096 text/tales.jsonl > base.log 2>&1
say base; 
train() { name=$1; shift; [ -d runs/$name/model ] || nice -n 19 $AW train "$@" -o runs/$name > runs/$name.log 2>&1; say trained $name $?; }
measure() { [ -f runs/$1.json ] || nice -n 19 $PY measure.py runs/$1/model runs/$1.json 4 32 >> measures.txt 2>>measures.err; say measured $1; }
train tales-stem keep/recipes/tales-stem.toml; measure tales-stem
M=keep/recipes/tales-mdm.toml
train tales-A $M; measure tales-A
train tales-B $M --set objective.keep_start=true; measure tales-B
train tales-C $M --set optimizer.lr=3e-3; measure tales-C
train tales-D $M --set optimizer.weight_decay=0.5; measure tales-D
train tales-A1 $M --set seed=1; measure tales-A1
train tales-B1 $M --set seed=1 --set objective.keep_start=true; measure tales-B1
say end

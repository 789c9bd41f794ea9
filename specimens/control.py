"""A cheap look at all snapshots of a LoRA run: one pass over a prompt followed by 32 masks, and over a story with a third
of its tokens masked (fixed masks). measure_quick.py BASE RUN OUT.json. Plain transformers, eager attention, float32.
Column means over all queries; the start is position 0. `arm`: the base, causal, on the clear story."""
import json, sys, glob, re
import numpy as np, torch
torch.set_num_threads(1); torch.set_grad_enabled(False)
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from safetensors.torch import load_file
base,run,out=sys.argv[1:4]; MASK=16
tok=PreTrainedTokenizerFast.from_pretrained(base)
STORY=["Once upon a time, there was a little girl named Mia. She lived in a small house near the sea. One day, she found a red ball on the sand. She took it home and showed it to her mom. Her mom smiled and said it was a nice ball. Mia was very happy.",
"Tom and his dog Max went to the park. The sun was warm, and the birds were singing. Tom saw a big tree and wanted to climb it. Max barked at a cat. The cat ran up the tree. Tom laughed and they all went home together for dinner."]
def inputs():
    for n,s in enumerate(STORY):
        ids=torch.tensor(tok(s,add_special_tokens=False)["input_ids"])
        cut=24; yield "write",torch.cat([ids[:cut],torch.full((32,),MASK)])
        g=torch.Generator().manual_seed(n); m=ids.clone(); m[torch.rand(len(ids),generator=g)<.35]=MASK; yield "noisy",m
net=LlamaForCausalLM.from_pretrained(base,dtype=torch.float32,attn_implementation="eager").eval()
plain={k:v.clone() for k,v in net.state_dict().items() if k.endswith("proj.weight") or k=="model.embed_tokens.weight"}
hooks={}
def look(ids,causal):
    net.config.is_causal=causal
    o=net.model(ids[None],output_attentions=True,output_hidden_states=True)
    a=torch.stack(o.attentions)[:,0]                     # layer head query key
    even=(1/torch.arange(1,len(ids)+1)).flip(0).cumsum(0).flip(0)[0]/len(ids) if causal else 1/len(ids)
    col=a.mean(2); top,at=col.max(-1)
    strong=top>.3; names={}
    for p in at[strong].tolist():
        k=f"{p}:{tok.decode([int(ids[p])])}"; names[k]=names.get(k,0)+1
    hm=col.mean(1).max(-1).values*len(ids)
    vals=[]
    return dict(top=float(top.mean()),above=float(strong.float().mean()),pos0=float((at==0).float().mean()),mask_top=float((ids[at]==MASK).float().mean()),
      null=float(even),head_mean_best=float(hm.max()),by_layer=top.mean(1).tolist(),pos0_by_layer=(at==0).float().mean(1).tolist(),
      share0=float(col[...,0].mean()),act=max(float(h.abs().max()) for h in o.hidden_states),
      upper_bidirectional=float(torch.triu(a.mean((0,1)),1).sum()/len(ids)),strong={k:v for k,v in sorted(names.items(),key=lambda x:-x[1])[:5]})
found={}
def note(key,rows):
    found[key]=rows; json.dump(found,open(out,"w"),indent=1)
    for kind in sorted({k for k,_ in rows}):
        r=[x for k,x in rows if k==kind]; m=lambda n: round(float(np.mean([x[n] for x in r])),3)
        print(key,kind,*(f"{n}={m(n)}" for n in ("top","null","above","pos0","share0","mask_top","head_mean_best","act","upper_bidirectional")),[x["strong"] for x in r],flush=True)
clear=[torch.tensor(tok(x,add_special_tokens=False)["input_ids"]) for x in STORY]
note("causal",[("clear",look(c,True)) for c in clear]+[(k,look(ids,True)) for k,ids in inputs()])
note("both ways, untrained",[("clear",look(c,False)) for c in clear])

"""stories15M writes stories: write_stories.py OUT.jsonl COUNT SEED [temperature] [top_p]. Appends; whole stories.

The head is cut to the tokens that the model ever gives more than 1e-3 in a first batch (others have no place in its
stories), which makes a step four times cheaper."""
import json, sys, time, torch
from pathlib import Path
from transformers import AutoTokenizer, AutoModelForCausalLM
torch.set_grad_enabled(False); torch.set_num_threads(1)
p="/work/specimens/bases/stories15m"
out=Path(sys.argv[1]); want=int(sys.argv[2]); seed=int(sys.argv[3])
temp=float(sys.argv[4]) if len(sys.argv)>4 else 1.0; top=float(sys.argv[5]) if len(sys.argv)>5 else .95
tok=AutoTokenizer.from_pretrained(p); m=AutoModelForCausalLM.from_pretrained(p).float().eval()
g=torch.Generator().manual_seed(seed); head=m.lm_head.weight.detach()
vocab=Path("/work/specimens/text/head.pt")
kept=torch.load(vocab,weights_only=True) if vocab.exists() else None
most=torch.zeros(head.shape[0])
done=0; toks=0; c0=time.process_time(); t0=time.time()
def batch(B,kept):
    global most
    W=head if kept is None else head[kept].contiguous()
    ids=torch.full((B,1),1); cur=ids; cache=None; alive=torch.ones(B,dtype=torch.bool)
    for step in range(255):
        o=m.model(cur,past_key_values=cache,use_cache=True); cache=o.past_key_values
        pr=torch.softmax((o.last_hidden_state[:,-1]@W.T)/temp,-1)
        if kept is None: most=torch.maximum(most,pr[alive].amax(0))
        s,ix=pr.topk(96); keep=(s.cumsum(-1)-s)<top; s=s*keep
        nxt=ix.gather(1,torch.multinomial(s,1,generator=g))
        if kept is not None: nxt=kept[nxt]
        nxt=torch.where(alive[:,None],nxt,torch.tensor(2))
        alive=alive&~((nxt[:,0]==1)|(nxt[:,0]==2)); ids=torch.cat([ids,nxt],1); cur=nxt
        if not alive.any(): break
    return ids,alive
while done<want:
    first=kept is None
    ids,alive=batch(32 if first else 64,kept)
    if first:
        kept=torch.nonzero(most>1e-3).flatten(); torch.save(kept,vocab); print("head",len(kept),flush=True)
    with out.open("a") as f:
        for row,live in zip(ids.tolist(),alive.tolist()):
            row=row[1:]
            if not live: row=row[:next(i for i,x in enumerate(row) if x in (1,2))]
            text=tok.decode(row).strip()
            if live:
                cut=max(text.rfind(c) for c in '.!?"'); text=text[:cut+1]
            if len(text)>200:
                f.write(json.dumps({"text":text})+"\n"); done+=1; toks+=len(row)
    print(done,toks,f"{toks/(time.time()-t0):.0f} tok/s wall, {toks/(time.process_time()-c0):.0f} per cpu s",flush=True)

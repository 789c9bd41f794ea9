"""Sink measures of one model: measure.py MODEL OUT.json [prompts] [length] [what=label]. One thread."""
import json, sys, time, warnings
import numpy as np, torch
torch.set_num_threads(1); warnings.simplefilter("ignore")
import anchorwatch as aw
from anchorwatch import metrics, probes, rules
from anchorwatch.decoding import LeftToRight, LowConfidence
from anchorwatch.runs import run_many
from anchorwatch.lab.written import cells, greatest_path, _classes
PROMPTS=["Once upon a time, there was a little girl named Mia. She lived in a small house near the sea. One day,",
 "Tom and his dog Max went to the park. The sun was warm, and the birds were singing. Tom saw",
 "There was an old bear who liked honey. Every morning, he walked to the big tree. But today,",
 "Anna wanted to bake a cake for her mom. She took flour, eggs and sugar. Then she",
 "In the forest, a small rabbit was looking for his friend. He asked the owl. The owl said,",
 "Ben had a red ball. He played with it all day. In the evening, the ball was gone. Ben",
 "It was a rainy day and Lucy could not go outside. She sat at the window and looked at the street. Suddenly,",
 "Once there was a king who had no friends. He sat in his castle alone. One night,"]
def main(src,out,n=4,length=32,steps=None):
    model=aw.load(src); t=time.process_time()
    arm=model.family.kind=="arm"
    how=LeftToRight(length=length) if arm else LowConfidence(length=length,steps=steps or length)
    traces=run_many(model,PROMPTS[:n],how,probes=(probes.received(groups=("all",),dtype="float32"),probes.norms(keys=True)))
    found={"source":src,"kind":model.family.kind,"prompts":n,"length":length}
    g=cells(metrics.sinks(traces,rules.rulli(3),by=()))["greatest"]; found["top_share"]=g
    found["above"]=[]; found["pos0"]=[]; found["moves"]=[]; found["strong_is"]={}; found["by_layer"]=None
    lay=[];pos=[];tops=[];texts=[];hm=[]
    for tr in traces:
        sh=tr["received"].sel(group="all").values  # step layer head key
        ok=~np.isnan(sh).all(-1); top=np.where(ok,np.nanmax(np.where(np.isnan(sh),-1,sh),-1),np.nan)
        path=greatest_path(tr)
        found["above"].append(float(np.nanmean(np.where(ok,top>.3,np.nan))))
        found["pos0"].append(float(np.nanmean(np.where(ok,path==0,np.nan))))
        m=(path[1:]!=path[:-1])[ok[1:]&ok[:-1]]; found["moves"].append(float(m.mean()) if m.size else None)
        lay.append(np.nanmean(top,axis=(0,2))); pos.append(np.nanmean(np.where(ok,path==0,np.nan),axis=(0,2)))
        mean=np.nanmean(sh,axis=2); live=(~np.isnan(mean)).sum(-1)
        hm.append(np.nanmax(np.where(np.isnan(mean),-1,mean),-1)*live)
        # which tokens hold strong sinks, by the token on the canvas at that step
        can=tr.canvas
        strong=ok&(top>.3)
        if can is not None:
            for s,l,h in zip(*np.nonzero(strong)):
                p=int(path[s,l,h]); tok=model.tokenizer.decode([int(can[s,p])]) if p>=0 else "added"
                k=f"{p}:{tok}"; found["strong_is"][k]=found["strong_is"].get(k,0)+1
        texts.append(getattr(tr,"text",None))
    found["by_layer"]=np.mean(lay,0).round(4).tolist(); found["pos0_by_layer"]=np.mean(pos,0).round(4).tolist()
    h=np.nanmean(np.concatenate([x for x in hm]),axis=0); found["head_mean_over_even"]=h.round(2).tolist(); found["best_head_mean"]=float(np.nanmax(h))
    tot=sum(found["strong_is"].values()) or 1
    found["strong_is"]=dict(sorted(((k,round(v/tot,3)) for k,v in found["strong_is"].items()),key=lambda x:-x[1])[:12])
    for q,f in (("jumps",lambda: cells(metrics.jumps(traces,rules.rulli(3),by=()))),("value",lambda: cells(metrics.value_norms(traces,rules.rulli(3),by=()))),
                ("is",lambda: _classes(metrics.enrichment(traces,rules.topk(1))))):
        try: found[q]=f()
        except Exception as e: found[q]=repr(e)
    ends=model.specials
    found["texts"]=[]
    for tr in traces:
        try: found["texts"].append(tr.text if isinstance(tr.text,str) else tr.text())
        except Exception as e: found["texts"].append(repr(e))
    # massive activations on the prompts
    peak=[]
    with torch.no_grad():
        for p in PROMPTS[:2]:
            ids=torch.tensor([model.tokenizer(p)["input_ids"]])
            hs=model.network(ids,output_hidden_states=True).hidden_states
            peak.append([float(x.abs().max()) for x in hs])
    found["largest_activation"]=np.mean(peak,0).round(1).tolist()
    found["cpu_seconds"]=time.process_time()-t
    json.dump(found,open(out,"w"),indent=1)
    mean=lambda x: round(float(np.mean([v for v in x if v is not None])),4)
    print(src,"top",round(g["value"],3),"null",round(g["null"],3),"above.3",mean(found["above"]),"pos0",mean(found["pos0"]),"moves",mean(found["moves"]),"headmean x even",round(found["best_head_mean"],1),"value",found["value"]["ratio"]["value"] if isinstance(found["value"],dict) else found["value"],"max act",max(found["largest_activation"]),list(found["strong_is"].items())[:4],f"{found['cpu_seconds']:.0f}s")
    for x in found["texts"][:2]: print("   ",repr(x)[:300])
if __name__=="__main__":
    a=sys.argv[1:]; main(a[0],a[1],*(int(x) for x in a[2:]))

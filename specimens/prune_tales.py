"""stories15M with a smaller vocabulary and more layers: prune_tales.py OUT LAYERS STORIES.jsonl...

Kept are the pieces that the stories and the world's texts hold, those they are merged from, and all
bytes. Layers are added as copies that do nothing at first (their output projections are zero), one
after each old one, so that the network says what it said (LLaMA Pro's block expansion)."""
import json, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from convert_llama2c import read_network, read_pieces, tokenizer_of
from anchorwatch.worlds import World, Distractors
CUT=60816028
out,layers=Path(sys.argv[1]),int(sys.argv[2])
content=Path("/work/specimens/pkg/tales/package/src/llama2.data").read_bytes()
old=read_network(content[:CUT]); pieces,scores=read_pieces(content[CUT:],32000)
whole,_=tokenizer_of(pieces,scores)
used=set(); tokens=0
for path in sys.argv[3:]:
    for line in Path(path).open():
        ids=whole(json.loads(line)["text"],add_special_tokens=False).input_ids; used|=set(ids); tokens+=len(ids)
stories=len(used)
for split in ("train","held-out"):
    for hops in (1,2):
        w=World(split,hops,0,Distractors(random=1,hard=1))
        for i in range(1500):
            item=w[i]; used|=set(whole(f"{item.prompt()} {item.answers[0]}",add_special_tokens=False).input_ids)
print("story tokens",tokens,"types",stories,"with world",len(used))
if Path("/work/specimens/text/head.pt").exists():  # also what the model may write in more stories
    used|=set(torch.load("/work/specimens/text/head.pt",weights_only=True).tolist())
stock,order=tokenizer_of(pieces,scores,keep=used,specials=("<|pad|>","<|mask|>"))
stock.pad_token,stock.mask_token="<|pad|>","<|mask|>"
print("kept",len(order),"tokenizer",len(stock))
config=LlamaConfig(**{**old.config.to_dict(),"vocab_size":len(stock),"num_hidden_layers":layers,"dtype":"float32"})
new=LlamaForCausalLM(config).float()
with torch.no_grad():
    e=old.model.embed_tokens.weight; rows=torch.cat([e[order],e[order].mean(0,keepdim=True).repeat(len(stock)-len(order),1)])
    new.model.embed_tokens.weight.copy_(rows); new.tie_weights(); new.model.norm.load_state_dict(old.model.norm.state_dict())
    n=old.config.num_hidden_layers; at=0
    for i in range(n):
        copies=(layers*(i+1))//n-(layers*i)//n
        for c in range(copies):
            layer=new.model.layers[at]; layer.load_state_dict(old.model.layers[i].state_dict()); at+=1
            if c:
                layer.self_attn.o_proj.weight.zero_(); layer.mlp.down_proj.weight.zero_()
    assert at==layers
new.half().save_pretrained(out); stock.save_pretrained(out)
t="Once upon a time, there was a little girl. Question: Where was Lena born?\nAnswer: Oslo"
ids=stock(t,return_tensors="pt").input_ids; print(ids.tolist(), repr(stock.decode(ids[0]))); assert stock.decode(ids[0])=="<s>"+t
new.float(); o=new.generate(stock("Once upon a time, there was a little girl",return_tensors="pt").input_ids,max_new_tokens=40,do_sample=False); print(stock.decode(o[0]))
print(sum(p.numel() for p in new.parameters())/1e6,"M")

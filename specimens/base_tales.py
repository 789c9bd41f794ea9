"""The base of the tales: base_tales.py OUT LAYERS VOCABULARY STORIES.jsonl...

stories15M (6 layers) with a tokenizer of our own (byte-level BPE learned from the stories and the
made-up world; Llama's pieces are not shipped) and more layers. The embedding of a new token is the
mean of those of the pieces that spelled it. Layers are added as copies that do nothing at first
(their output projections are zero), so that the network says what it said."""
import json, sys
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from convert_llama2c import read_network, read_pieces, tokenizer_of
from anchorwatch.training.corpora import read
CUT=60816028
out,layers,size=Path(sys.argv[1]),int(sys.argv[2]),int(sys.argv[3])
content=Path("/work/specimens/pkg/tales/package/src/llama2.data").read_bytes()
old=read_network(content[:CUT]); pieces,scores=read_pieces(content[CUT:],32000)
whole,_=tokenizer_of(pieces,scores)
mix=[{"kind":"file","path":path,"weight":.7/len(sys.argv[4:])} for path in sys.argv[4:]]
mix+=[{"kind":"questions","weight":.15,"hops":1},{"kind":"questions","weight":.05,"hops":2},{"kind":"quiz","weight":.05},{"kind":"backcopy","weight":.05}]
stock=read({"vocabulary":size,"mix":mix},128).vocabulary.stock
e=old.model.embed_tokens.weight.detach(); mean=e.mean(0); rows=[]; single=0
special=set(stock.all_special_ids)
for at in range(len(stock)):
    name=stock.decode([at])
    if at in special or "\ufffd" in name:
        rows.append({stock.bos_token_id:e[1],stock.eos_token_id:e[2]}.get(at,mean)); continue
    ids=whole(name,add_special_tokens=False).input_ids; single+=len(ids)==1
    rows.append(e[ids].mean(0))
print("tokens",len(stock),"spelled by one piece",single)
config=LlamaConfig(**{**old.config.to_dict(),"vocab_size":len(stock),"num_hidden_layers":layers,"dtype":"float32",
  "bos_token_id":stock.bos_token_id,"eos_token_id":stock.eos_token_id})
new=LlamaForCausalLM(config).float()
with torch.no_grad():
    new.model.embed_tokens.weight.copy_(torch.stack(rows)); new.tie_weights(); new.model.norm.load_state_dict(old.model.norm.state_dict())
    n=old.config.num_hidden_layers; at=0
    for i in range(n):
        for c in range((layers*(i+1))//n-(layers*i)//n):
            layer=new.model.layers[at]; layer.load_state_dict(old.model.layers[i].state_dict()); at+=1
            if c: layer.self_attn.o_proj.weight.zero_(); layer.mlp.down_proj.weight.zero_()
    assert at==layers
new.half().save_pretrained(out); stock.save_pretrained(out); new.float()
for t in ("Once upon a time, there was a little girl",):
    o=new.generate(stock(t,return_tensors="pt").input_ids,max_new_tokens=40,do_sample=False); print(stock.decode(o[0]))
print(sum(p.numel() for p in new.parameters())/1e6,"M")

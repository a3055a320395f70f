"""`python -m inference.gguf_model FILE.gguf FOLDER`: a GGUF model in Hugging Face's layout, for vLLM.

A process of its own, so that nothing of the site imports torch or transformers for it.
"""

import sys
from pathlib import Path
from typing import Any

# By a part of the file's name: a GGUF file does not say how its makers sample. From the model's card.
RECOMMENDED: dict[str, dict[str, Any]] = {"smollm2": {"do_sample": True, "temperature": 0.2, "top_p": 0.9}}


def convert(source: Path, target: Path) -> None:
    """Write weights (bfloat16), configuration, tokenizer and chat template of `source` into `target`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    config = AutoConfig.from_pretrained(**where)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    with torch.device("meta"):  # only its parameters' names are needed
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call, unused-ignore]
    # What from_pretrained(gguf_file=…) does, without its need of accelerate.
    loaded = load_gguf_checkpoint(  # type: ignore[no-untyped-call, unused-ignore]
        str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )
    tensors = loaded["tensors"]
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    weights = target / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library makes it private
    config.architectures = [type(model).__name__]
    config.dtype = torch.bfloat16
    config.eos_token_id = tokenizer.eos_token_id
    config.save_pretrained(target)
    recommended = next((how for name, how in RECOMMENDED.items() if name in source.name.lower()), {})
    generation = GenerationConfig(  # type: ignore[no-untyped-call, unused-ignore]
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id, **recommended
    )
    generation.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
